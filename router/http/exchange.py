"""What one exchange with a replica is made of: its limits, how it can fail or end, and who has a say in it.

The one rule: an `UpstreamError` means that nothing of a reply went to the client, so another replica may be asked; once
something did there is an ending. Not here: sockets (`connection`), and whether to ask another (`router.retries`).
"""

from dataclasses import dataclass
from typing import Protocol

from router.http.messages import Headers


class UpstreamError(Exception):
    """The exchange failed before any byte of a reply went to the client, so another replica may be asked."""

    kind = "failed"


class Unreachable(UpstreamError):  # noqa: N818 -- named after what happened
    """No connection: refused, reset, unknown host, or not within `connect_s`."""

    kind = "unreachable"


class Lost(UpstreamError):  # noqa: N818 -- named after what happened
    """The replica closed the connection, or spoke no HTTP, before a reply began."""

    kind = "lost"


class BrokenOff(UpstreamError):  # noqa: N818 -- named after what happened
    """The replica broke off a reply of which nothing had been passed on."""

    kind = "cut"


class Declined(UpstreamError):  # noqa: N818 -- named after what happened
    """The replica answered, but with what a client need not see while another replica is left; `kind` says what."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class TimedOut(UpstreamError):  # noqa: N818 -- named after what happened
    """No byte of a reply within `first_byte_s`, or the replica has stopped to answer anybody."""

    kind = "timed_out"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None is no limit. There is no limit on a whole stream."""

    connect_s: float = 5.0
    first_byte_s: float | None = None
    idle_s: float | None = 600.0


class Ear(Protocol):
    """Who wants a reply's body beyond the end that is kept."""

    def heard(self, piece: bytes) -> None:
        """The next part of the body, some 2 KB of a stream, as it falls out of the kept end."""
        ...


class Attempt(Protocol):
    """Who sent the request: is asked about the reply before anything of it is passed on, and told when it begins."""

    def declined(self, status: int, headers: Headers, first: bytes, whole: bool) -> UpstreamError | None:
        """What to fail with instead of passing this reply on; `first` is the beginning of its body, or all of it."""
        ...

    @property
    def ear(self) -> Ear | None: ...

    def began(self) -> None:
        """The body of a good reply begins."""
        ...


class _Nobody:
    """Stands in while a connection waits for its next exchange."""

    ear = None

    def declined(self, *_: object) -> None:
        return None

    def began(self) -> None: ...


NOBODY: Attempt = _Nobody()

_LAST_WORDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")


def ends_a_stream(end: bytes) -> bool:
    """Whether an event stream whose body ends so is whole: where only its connection ends it, it must have said so."""
    return any(words in end for words in _LAST_WORDS)
