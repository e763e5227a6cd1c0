"""A client's call as the bytes a replica gets.

The one rule: the client's bytes go on as they came; added are forwarding headers, and in place of the client's
credential the router's own where there is one (RFC 9110 §7.6, de-facto `X-Forwarded-*`). Not here: sending.
"""

from msgspec import structs

from router.http.messages import Call
from router.http.upstream import Upstream


class Forwarding:
    """What the router adds to every request."""

    def __init__(self, replica_key: str | None, credentials: frozenset[bytes] = frozenset()) -> None:
        """`credentials` are the headers in which clients bring theirs, when they are for this router alone."""
        self._authorization = f"Bearer {replica_key}".encode() if replica_key else None
        self._dropped = credentials | {b"authorization"} if replica_key else credentials

    def __repr__(self) -> str:
        return f"<Forwarding with {'the router' if self._authorization else 'the client'}'s credential>"

    def rest(self, call: Call) -> bytes:
        """All that follows the Host line, the same for every replica."""
        parts = [b"\r\n"]
        forwarded: list[bytes] = []
        host = b"X-Forwarded-Host: %b\r\n" % call.host if call.host else b""
        for name, value in call.headers:
            key = name.lower()
            if key == b"x-forwarded-for":
                forwarded.append(value)
                continue
            if key == b"x-forwarded-host":  # a proxy before this one knows better
                host = b""
            if key not in self._dropped:
                parts += (name, b": ", value, b"\r\n")
        if self._authorization:
            parts += (b"Authorization: ", self._authorization, b"\r\n")
        parts += (b"X-Forwarded-For: ", b", ".join([*forwarded, call.peer.encode()]), b"\r\n", host)
        if call.body or call.method == b"POST":
            parts.append(b"Content-Length: %d\r\n" % len(call.body))
        parts += (b"\r\n", call.body)
        return b"".join(parts)


def request_bytes(call: Call, upstream: Upstream, rest: bytes) -> bytes:
    """The whole request for one replica."""
    start = (call.method, b" ", upstream.base_path, call.target, b" HTTP/1.1\r\nHost: ", upstream.authority)
    return b"".join((*start, upstream.headers, rest))


def again(call: Call, retries: int) -> Call:
    """The call for another replica: an engine makes the client's X-Request-Id part of its own, which must not recur."""
    headers = [
        (name, value + b"-retry-%d" % retries if name.lower() == b"x-request-id" else value)
        for name, value in call.headers
    ]
    return structs.replace(call, headers=headers)
