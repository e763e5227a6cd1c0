"""A client's call as the bytes a replica gets.

The one rule: the client's bytes go on as they came; added are forwarding headers, and in place of the client's
credential the router's own where there is one (RFC 9110 §7.6, de-facto `X-Forwarded-*`). Not here: sending.
"""

from typing import Final

from router.http.messages import Call
from router.http.upstream import Upstream
from router.tenants import CREDENTIALS

_FOR: Final = b"x-forwarded-for"
_COLON: Final = b": "


class Forwarding:
    """What the router adds to every request."""

    def __init__(self, replica_key: str | None, credentials: frozenset[bytes] = frozenset()) -> None:
        """`credentials` are the headers in which clients bring theirs, when they are for this router alone."""
        self._authorization = (f"Authorization: Bearer {replica_key}".encode(),) if replica_key else ()
        self._replaced = credentials | {_FOR} | ({b"authorization"} if replica_key else set())

    def __repr__(self) -> str:
        return f"<Forwarding with {'the router' if self._authorization else 'the client'}'s credential>"

    def rest(self, call: Call) -> bytes:
        """What stands between the Host line and the body."""
        named, headers, peer = call.named, call.headers, call.peer.encode()
        if not self._replaced.isdisjoint(named):
            earlier = [value for name, value in headers if name.lower() == _FOR]
            headers = [field for field in headers if field[0].lower() not in self._replaced]
            peer = b", ".join([*earlier, peer])
        lines = [b"", *map(_COLON.join, headers), *self._authorization]
        lines.append(b"X-Forwarded-For: " + peer)
        if call.host and b"x-forwarded-host" not in named:  # a proxy before this one knows better
            lines.append(b"X-Forwarded-Host: " + call.host)
        if call.body or call.method == b"POST":
            lines.append(b"Content-Length: %d" % len(call.body))
        return b"\r\n".join(lines) + b"\r\n\r\n"


def forwardings(replica_key: str | None, credentials: frozenset[bytes]) -> dict[str, Forwarding]:
    """By what becomes of a client's key; `credentials` are the headers whose keys are for this router in any case."""
    return {
        "auto": Forwarding(replica_key, credentials),
        "forward": Forwarding(None, credentials),
        "drop": Forwarding(replica_key, credentials | CREDENTIALS),
    }


def request_bytes(call: Call, upstream: Upstream, rest: bytes) -> bytes:
    """The whole request for one replica: the one copy of its body."""
    start = (call.method, b" ", upstream.base_path, call.target, b" HTTP/1.1\r\nHost: ", upstream.authority)
    return b"".join((*start, upstream.headers, rest, call.body))


def again(call: Call, retries: int) -> Call:
    """The call for another replica: an engine makes the client's X-Request-Id part of its own, which must not recur."""
    headers = [
        (name, value + b"-retry-%d" % retries if name.lower() == b"x-request-id" else value)
        for name, value in call.headers
    ]
    return call.with_headers(headers)
