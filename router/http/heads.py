"""Heads of requests and replies: what becomes of their headers, on the way there and back.

Every head brings the same few names, each in one of two spellings; to lower and hash them anew cost more than all else
that is done with it, so known names are looked up. The one rule: a name not known here is an ordinary header's. Not
here: sockets, bodies.
"""

from typing import Final

from router.errors import BadRequest, BodyTooLarge, NotImplementedHere
from router.http.messages import Headers

_HOP_BY_HOP: Final = (
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
)
"""Headers of one connection, never passed on (RFC 9110 §7.6.1, and the RFC 2616 §13.5.1 list older software sends)."""
_OURS: Final = (b"host", b"content-length", b"transfer-encoding", b"expect")
"""What a request's reader needs, and whoever writes it anew says again."""
_NAMES_NOBODY: Final = (b"keep-alive", b"close")  # what Connection says of itself alone
_ONCE: Final = {b"host": "Host", b"authorization": "Authorization"}
_HOST: Final = b"!$%&'()*+,-.0123456789:;=ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz~"
"""What a host and its port are written in (RFC 3986 §3.2.2)."""
_USUAL: Final = (
    b"accept",
    b"accept-encoding",
    b"accept-language",
    b"authorization",
    b"cache-control",
    b"content-type",
    b"cookie",
    b"date",
    b"origin",
    b"server",
    b"traceparent",
    b"user-agent",
    b"x-api-key",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-request-id",
    b"x-stainless-arch",
    b"x-stainless-async",
    b"x-stainless-lang",
    b"x-stainless-os",
    b"x-stainless-package-version",
    b"x-stainless-read-timeout",
    b"x-stainless-retry-count",
    b"x-stainless-runtime",
    b"x-stainless-runtime-version",
)


class Field:
    """One name."""

    __slots__ = ("hop_by_hop", "key", "ours")

    def __init__(self, key: bytes, hop_by_hop: bool = False, ours: bool = False) -> None:
        self.key: Final = key
        """In lower case."""
        self.hop_by_hop: Final = hop_by_hop
        self.ours: Final = ours

    def __repr__(self) -> str:
        return f"<Field {self.key.decode('latin-1')}>"


def _spelled(keys: tuple[bytes, ...]) -> dict[bytes, Field]:
    known = {}
    for key in keys:
        known[key] = known[key.title()] = Field(key, key in _HOP_BY_HOP, key in _OURS)
    return known


_KNOWN: Final = _spelled((*_HOP_BY_HOP, *_OURS, *_USUAL))


def field_of(name: bytes) -> Field:
    """The field of this name, however it is spelled."""
    known = _KNOWN.get(name)
    if known is None:
        key = name.lower()
        known = _KNOWN.get(key)
        if known is None:
            known = Field(key)
    return known


def request_head(headers: Headers, body_bytes: int) -> tuple[Headers, dict[bytes, bytes]]:
    """The headers that are passed on, and the first value of each that counts, by its name in lower case.

    Raises `BadRequest` for two of what may come once, `BodyTooLarge` for a longer body than `body_bytes`, and
    `NotImplementedHere` for codings of a transfer other than chunks.
    """
    kept: Headers = []
    named: dict[bytes, bytes] = {}
    names_more = False
    for name, value in headers:
        field = field_of(name)
        key = field.key
        if key not in named:
            named[key] = value
        elif key in _ONCE:
            raise BadRequest(f"the request has more than one {_ONCE[key]} header; send exactly one")
        if field.ours:
            if key == b"content-length" and int(value) > body_bytes:
                raise BodyTooLarge.over(body_bytes)
            if key == b"host":
                checked_host(value)
            if key == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise NotImplementedHere("Transfer-Encoding other than chunked is not accepted")
        elif not field.hop_by_hop:
            kept.append((name, value))
        elif key == b"connection":
            names_more = names_more or value.lower() not in _NAMES_NOBODY
    if names_more:
        kept = [pair for pair in without_hop_by_hop(headers) if not field_of(pair[0]).ours]
        passed_on = {name.lower() for name, _ in kept}
        for key in list(named):  # what does not go on counts for nobody, but that there was a Connection
            if key not in passed_on and key != b"connection" and not field_of(key).ours:
                del named[key]
    return kept, named


def minor_of(version: str) -> int:
    """The minor version of HTTP/1. Raises `BadRequest` for any other: llhttp reads 0.9 and 2.0 just as well."""
    if version not in ("1.0", "1.1"):
        raise BadRequest(f"HTTP/{version} is not accepted; send HTTP/1.1")
    return int(version == "1.1")


def checked_host(value: bytes) -> None:
    """Raises `BadRequest` for what can't be a host (RFC 9112 §3.2); none at all may be one."""
    if value.translate(None, _HOST):
        raise BadRequest("the request's Host header is no host and port")


def without_hop_by_hop(headers: Headers) -> Headers:
    """Headers that may be passed on: those of this connection, and any that Connection names, are dropped."""
    kept: Headers = []
    named: list[bytes] = []
    for name, value in headers:
        field = field_of(name)
        if not field.hop_by_hop:
            kept.append((name, value))
        elif field.key == b"connection":
            named.append(value)
    also = {token.strip().lower() for value in named for token in value.split(b",")}
    return [field for field in kept if field[0].lower() not in also] if also else kept


def without_upgrade(headers: Headers) -> bytes:
    """The lines of a request's headers and the empty line behind them, less what asks for another protocol."""
    names = (b"connection", b"upgrade", b"http2-settings")
    lines = [b"%b: %b\r\n" % field for field in headers if field[0].lower() not in names]
    said = [value for name, value in headers if name.lower() == b"connection"]
    if any(token.strip().lower() == b"close" for value in said for token in value.split(b",")):
        lines.append(b"Connection: close\r\n")
    return b"%b\r\n" % b"".join(lines)


def is_plain(data: bytes, end: int) -> bool:
    """Whether a reply begins with its final head, as long as its parts tell: nothing folded, padded, or before it."""
    return data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1" and data[end - 4 : end] == b"\r\n\r\n"


def head_end(data: bytes) -> int:
    """Where a reply's body begins: interim ones stand before the final one, and empty lines may (RFC 9112 §2.2)."""
    position = 0
    while True:
        while data.startswith(b"\r\n", position):
            position += 2
        end = data.index(b"\r\n\r\n", position) + 4
        if data[position + 9 : position + 10] != b"1":
            return end
        position = end
