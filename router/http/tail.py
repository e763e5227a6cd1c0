"""The end of a reply's body, kept for accounts, and what they look for that had passed before it.

An engine may say its usage, or that it failed, and go on for longer than what is kept (a Responses event ends with the
texts of all messages). The one rule: small events cost one concatenation. Not here: what any of it means (`usage`).
"""

from typing import Final

from router.http.exchange import Ear

TAIL_BYTES: Final = 32 * 1024  # how much of a reply's end is kept for reading usage
STREAM_TAIL_BYTES: Final = 4 * 1024  # its usage has an event of its own; what is kept costs as long as it lasts
_PIECE_BYTES: Final = 2 * 1024  # smaller pieces are joined, so that the kept end has a useful length
_SAID_BYTES: Final = 512  # of a usage or an error, from its name on
_USAGE: Final = b'"usage"'
_ERRORS: Final = (b'data: {"error"', b"event: error\n")
_LONGEST: Final = max(map(len, (_USAGE, *_ERRORS)))


class Tail:
    """The last pieces of one body."""

    __slots__ = ("_edge", "_error", "_usage", "before", "last")

    def __init__(self) -> None:
        self.begun()

    def __repr__(self) -> str:
        return f"<Tail of {len(self.before) + len(self.last)} bytes>"  # none of the text

    def begun(self) -> None:
        """Another body."""
        self.before = self.last = self._edge = self._usage = self._error = b""

    def add(self, body: bytes, ear: Ear | None, most_bytes: int) -> None:
        """The next part of the body; what falls out of the kept end goes to `ear`."""
        if len(self.last) + len(body) <= _PIECE_BYTES:  # a stream's small events, or one that was cut in two
            self.last += body
            return
        self._passed(self.before, ear)
        self.before, self.last = self.last, body
        if len(body) > most_bytes:
            self._passed(self.before, ear)
            self._passed(body[:-most_bytes], ear)
            self.before, self.last = b"", body[-most_bytes:]

    def whole(self) -> bytes:
        """What is kept."""
        return self.before + self.last

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
        at = seen.rfind(_USAGE)
        if at >= 0:
            self._usage = seen[at : at + _SAID_BYTES]
        if not self._error:
            for word in _ERRORS:
                at = seen.find(word)
                if at >= 0:
                    self._error = seen[at : at + _SAID_BYTES]
        self._edge = piece[1 - _LONGEST :]


def _continued(said: bytes, piece: bytes) -> bytes:
    return said + piece[: _SAID_BYTES - len(said)] if len(said) < _SAID_BYTES else said
