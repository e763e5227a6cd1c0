"""What the two Protocols and the gateway say to each other: a client's call, and the reply it waits for.

The one rule: a body is bytes and stays bytes. Not here: sockets, parsing, meaning.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol
from urllib.parse import unquote

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may send."""

    header_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024


class Call:
    """One complete request of a client, hop-by-hop headers already dropped, the body whole and untouched."""

    __slots__ = ("body", "headers", "host", "method", "named", "peer", "target")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes,
        host: bytes,
        peer: str,
        named: dict[bytes, bytes],
    ) -> None:
        """`target` is path and query as the client sent them, `host` its Host header (empty when HTTP/1.0 sent none),
        `peer` its address; `named` has the first value of each header, by its name in lower case.
        """
        self.method: Final = method
        self.target: Final = target
        self.headers: Final = headers
        self.body: Final = body
        self.host: Final = host
        self.peer: Final = peer
        self.named: Final = named

    @classmethod
    def of(cls, method: bytes, target: bytes, headers: Headers, body: bytes, host: bytes, peer: str) -> "Call":
        return cls(method, target, headers, body, host, peer, _named(headers))

    def __repr__(self) -> str:
        return f"<Call of {len(self.body)} bytes>"  # none of the text, and no credential

    def with_headers(self, headers: Headers) -> "Call":
        return Call(self.method, self.target, headers, self.body, self.host, self.peer, _named(headers))

    def with_body(self, body: bytes) -> "Call":
        return Call(self.method, self.target, self.headers, body, self.host, self.peer, self.named)

    @property
    def path(self) -> str:
        """The path as the replica will read it: an engine's server decodes `%73leep` to `sleep`, so this does too."""
        path = self.target.partition(b"?")[0].decode("latin-1")
        return unquote(path) if "%" in path else path

    def header(self, name: bytes) -> str | None:
        """The first value of a header; `name` in lower case."""
        value = self.named.get(name)
        return None if value is None else value.decode("latin-1")


class Ending:
    """How an exchange with a replica ended once its reply had begun."""

    __slots__ = ("detail", "event_stream", "given_up", "said", "status", "tail", "whole")

    def __init__(
        self, status: int, whole: bool, detail: str, event_stream: bool, tail: bytes, given_up: bool, said: bytes
    ) -> None:
        """`whole` is False when the replica broke off and the client's reply was aborted, and `detail` why; `given_up`
        says that the router broke it off, for the replica's silence or its leaving. `tail` is the end of the body, at
        most about 64 KiB, and `said` what stood before it of usage and errors, as far as their names and figures.
        """
        self.status: Final = status
        self.whole: Final = whole
        self.detail: Final = detail
        self.event_stream: Final = event_stream
        self.tail: Final = tail
        self.given_up: Final = given_up
        self.said: Final = said


class Source(Protocol):
    """Where a reply's bytes come from: can be slowed down."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Framing(Enum):
    """How a reader learns where a reply's body ends."""

    SIZED = "Content-Length is among the headers"
    CHUNKED = "Transfer-Encoding: chunked is among the headers, and the written bytes are chunks"
    OPEN = "the headers do not tell: the reply frames the body itself"
    NONE = "there is no body, whatever the headers say"


class Reply(Protocol):
    """The client's side of one exchange. `head` once, `write` any number of times, then `end` or `abort`."""

    framed: bool
    """True: `write` takes the replica's bytes with their framing. False: it takes the body alone."""
    source: Source | None

    def head(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> None:
        """Start the reply. It may be kept until the first `write`, so that a short reply goes out in one piece."""
        ...

    def verbatim(self) -> bool:
        """Whether a framed head goes to the client just as the replica sent it; then the first `write` has it, and
        `head` is not called."""
        ...

    def write(self, data: bytes) -> None: ...

    def flush(self) -> None:
        """Nothing more is at hand: what is kept goes out now."""
        ...

    def end(self) -> None:
        """The reply is whole."""
        ...

    def abort(self) -> None:
        """The reply can't be finished: the client must see it as broken, never as complete."""
        ...


def _named(headers: Headers) -> dict[bytes, bytes]:
    return {name.lower(): value for name, value in reversed(headers)}


def joined(pieces: list[bytes | bytearray]) -> list[bytes | bytearray]:
    """Pieces of a body as one: an object for each of many tiny ones would cost more than what they hold."""
    first, *rest = pieces
    whole = first if isinstance(first, bytearray) else bytearray(first)
    whole += b"".join(rest)
    return [whole]


def origin_form(target: bytes) -> bytes:
    """A request target as path and query; a client may send a whole URL (RFC 9112 §3.2.2)."""
    if target.startswith(b"/") or b"://" not in target:
        return target
    rest = target.partition(b"://")[2]
    start = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    path = rest[start:]
    return path if path.startswith(b"/") else b"/" + path


def without_empty_lines(data: bytes, headers: Headers, body: bytes) -> bytes:
    """The end of a message, less empty lines behind it, which a sender may add and a reader must pass over.

    `body` is the end of its body, whether that is more or less than what of it is in `data`.
    """
    if not data.endswith(b"\r\n"):
        return data
    if not body or any(name.lower() == b"transfer-encoding" for name, _ in headers):
        while data.endswith(b"\r\n\r\n\r\n"):  # a head without a body, and chunks, end with one empty line
            data = data[:-2]
        return data
    bare = data
    while not (bare.endswith(body) or body.endswith(bare)):
        if not bare.endswith(b"\r\n"):
            return data
        bare = bare[:-2]
    return bare
