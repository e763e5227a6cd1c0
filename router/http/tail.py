"""The end of a reply's body, kept for accounts, and what they look for that had passed before it.

An engine may say its usage, or that it failed, and go on for longer than what is kept (a Responses event ends with the
texts of all messages). The one rule: small events cost no copy. Not here: what any of it means (`usage`).
"""

from typing import Final

from router.http.exchange import Ear

TAIL_BYTES: Final = 32 * 1024  # how much of a reply's end is kept for reading usage
STREAM_TAIL_BYTES: Final = 4 * 1024  # its usage has an event of its own; what is kept costs as long as it lasts
_PIECE_BYTES: Final = 2 * 1024  # smaller pieces count as one, so that the kept end has a useful length
_PIECES: Final = 64  # that are kept apart; of more the objects would take more than what is in them
_SAID_BYTES: Final = 512  # of a usage or an error, from its name on
_USAGE: Final = b'"usage"'
_ERRORS: Final = (b'data: {"error"', b"event: error\n")
_ERROR: Final = b"error"  # is in both: most pieces are searched once
_LONGEST: Final = max(map(len, (_USAGE, *_ERRORS)))


class Tail:
    """The last pieces of one body."""

    __slots__ = ("_before", "_edge", "_error", "_pieces", "_usage", "size_bytes")

    def __init__(self) -> None:
        self.begun()

    def __repr__(self) -> str:
        return f"<Tail of {len(self._before) + self.size_bytes} bytes>"  # none of the text

    def begun(self) -> None:
        """Another body."""
        self._before = self._edge = self._usage = self._error = b""
        self._pieces: list[bytes] = []
        self.size_bytes = 0
        """Of the last pieces; 0 only before the first of a body."""

    def add(self, body: bytes, ear: Ear | None, most_bytes: int) -> None:
        """The next part of the body; what falls out of the kept end goes to `ear`."""
        size_bytes = self.size_bytes + len(body)
        if size_bytes <= _PIECE_BYTES:  # a stream's small events, or one that was cut in two
            self._pieces.append(body)
            self.size_bytes = size_bytes
            if len(self._pieces) > _PIECES:
                self._pieces = [self.last]
            return
        self._passed(self._before, ear)
        self._before = self.last
        if len(body) > most_bytes:
            self._passed(self._before, ear)
            self._passed(body[:-most_bytes], ear)
            self._before, body = b"", body[-most_bytes:]
        self._pieces = [body]
        self.size_bytes = len(body)

    @property
    def last(self) -> bytes:
        """The end of the body, at least a part of its last piece."""
        return b"".join(self._pieces)

    def whole(self) -> bytes:
        """What is kept."""
        return self._before + self.last

    def said(self) -> bytes:
        """Beginnings of what was said of usage and errors before that, in this order; empty when nothing was."""
        return self._usage + self._error

    def _passed(self, piece: bytes, ear: Ear | None) -> None:
        if not piece:
            return
        if ear is not None:
            ear.heard(piece)
        self._usage = self._usage and _continued(self._usage, piece)
        self._error = self._error and _continued(self._error, piece)
        seen = self._edge + piece
        at = seen.rfind(_USAGE)  # backwards takes less time than `in`
        if at >= 0:
            self._usage = seen[at : at + _SAID_BYTES]
        if not self._error and seen.rfind(_ERROR) >= 0:
            for word in _ERRORS:
                at = seen.find(word)
                if at >= 0:
                    self._error = seen[at : at + _SAID_BYTES]
        self._edge = piece[1 - _LONGEST :]


def _continued(said: bytes, piece: bytes) -> bytes:
    return said + piece[: _SAID_BYTES - len(said)] if len(said) < _SAID_BYTES else said
