"""A client's call as the bytes a replica gets.

The one rule: the client's bytes go on as they came; added are forwarding headers, and in place of the client's
credential the router's own where there is one (RFC 9110 §7.6, de-facto `X-Forwarded-*`). Not here: sending.
"""

from typing import Final

from router.http.messages import Call
from router.http.upstream import Upstream
from router.tenants import CREDENTIALS

_FOR: Final = b"x-forwarded-for"


class Forwarding:
    """What the router adds to every request."""

    def __init__(self, replica_key: str | None, credentials: frozenset[bytes] = frozenset()) -> None:
        """`credentials` are the headers in which clients bring theirs, when they are for this router alone."""
        self._authorization = f"\r\nAuthorization: Bearer {replica_key}".encode() if replica_key else b""
        self._replaced = tuple(credentials | {_FOR} | ({b"authorization"} if replica_key else set()))

    def __repr__(self) -> str:
        return f"<Forwarding with {'the router' if self._authorization else 'the client'}'s credential>"

    def request(self, call: Call, upstream: Upstream) -> bytes:
        """The whole request for one replica: the one copy of its body."""
        named, headers, peer, body = call.named, call.headers, call.peer.encode(), call.body
        for key in self._replaced:
            if key in named:
                earlier = [value for name, value in headers if name.lower() == _FOR]
                headers = [field for field in headers if field[0].lower() not in self._replaced]
                peer = b", ".join([*earlier, peer])
                break
        target = b"%b %b%b HTTP/1.1\r\nHost: %b" % (call.method, upstream.base_path, call.target, upstream.authority)
        parts = [target, upstream.headers]
        for name, value in headers:
            parts.append(b"\r\n%b: %b" % (name, value))
        parts.append(self._authorization)
        parts.append(b"\r\nX-Forwarded-For: %b" % peer)
        if call.host and b"x-forwarded-host" not in named:  # a proxy before this one knows better
            parts.append(b"\r\nX-Forwarded-Host: %b" % call.host)
        if body or call.method == b"POST":
            parts.append(b"\r\nContent-Length: %d" % len(body))
        parts.append(b"\r\n\r\n")
        parts.append(body)
        return b"".join(parts)


def forwardings(replica_key: str | None, credentials: frozenset[bytes]) -> dict[str, Forwarding]:
    """By what becomes of a client's key; `credentials` are the headers whose keys are for this router in any case."""
    return {
        "auto": Forwarding(replica_key, credentials),
        "forward": Forwarding(None, credentials),
        "drop": Forwarding(replica_key, credentials | CREDENTIALS),
    }


def again(call: Call, retries: int) -> Call:
    """The call for another replica: an engine makes the client's X-Request-Id part of its own, which must not recur."""
    headers = [
        (name, value + b"-retry-%d" % retries if name.lower() == b"x-request-id" else value)
        for name, value in call.headers
    ]
    return call.with_headers(headers)
