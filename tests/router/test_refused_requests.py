"""Requests that are no HTTP, or that two readers may read as two things: refused, and nothing behind them is read."""

import asyncio
import re

import pytest

from tests.fakes import client_of, fake_replica, post, router_over

GET = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"%b /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

ANY_METHOD = {
    "no host": b"%b /v1/files HTTP/1.1\r\n\r\n",
    "two hosts": b"%b /v1/files HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "the same host twice": b"%b /v1/files HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
    "a host with a space": b"%b /v1/files HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a host with a path": b"%b /v1/files HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a host with a user": b"%b /v1/files HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "a host that is no text": b"%b /v1/files HTTP/1.1\r\nHost: a\xff\r\n\r\n",
    "length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n") + b"0\r\n\r\n",
    "two lengths": b"%b /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
    "two lengths in one": b"%b /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\n",
    "a length with a sign": b"%b /a HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\n",
    "a coding that is none": b"%b /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked, then another": b"%b /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a folded line": b"%b /a HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c\r\n\r\n",
    "a space before the colon": b"%b /a HTTP/1.1\r\nHost: a\r\nContent-Length : 4\r\n\r\n",
    "a NUL in a value": b"%b /a HTTP/1.1\r\nHost: a\r\nX-A: b\x00c\r\n\r\n",
    "a bare CR in a value": b"%b /a HTTP/1.1\r\nHost: a\r\nX-A: b\rContent-Length: 40\r\n\r\n",
    "a chunk longer than any": CHUNKED + b"ffffffffffffffffff\r\n\r\n",
    "a chunk of no number": CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    "HTTP/2 in words": b"%b /a HTTP/2.0\r\nHost: a\r\n\r\n",
    "no version": b"%b /a\r\nHost: a\r\n\r\n",
}
BEFORE = {"first": b"", "behind a GET": GET, "behind a POST": post()}


async def answered(url: str, before: bytes, raw: bytes) -> tuple[list[int], bytes]:
    """Statuses of all that was answered until the connection closed, and the last answer."""
    async with client_of(url) as client:
        await client.send(before)
        if before:
            assert (await client.reply()).status == 200
        await client.send(raw + SMUGGLED)
        told = await client.rest()
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", told)], told


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS"], ids=bytes.decode)
@pytest.mark.parametrize("raw", ANY_METHOD.values(), ids=ANY_METHOD)
async def test_what_two_may_read_as_two_things_is_refused(raw: bytes, method: bytes, before: bytes) -> None:
    async with fake_replica() as replica, router_over(replica) as up:
        statuses, told = await asyncio.wait_for(answered(up.url, before, raw % method), 10.0)
        unknown = b"xchunked" in raw and method == b"POST" and before != GET  # aiohttp takes it for malformed
        assert statuses == [501 if unknown else 400]
        assert b"/smuggled" not in told
        assert len(replica.seen) == (1 if b"POST" in before else 0)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
async def test_connect_is_refused_and_what_follows_is_not_read(before: bytes, pieces: int) -> None:
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(before)
        if before:
            assert (await client.reply()).status == 200
        raw = b"CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\n" + SMUGGLED
        for piece in (raw,) if pieces == 1 else (raw[:4], raw[4:]):
            await client.send(piece)
            await asyncio.sleep(0)
        told = await asyncio.wait_for(client.rest(), 10.0)
        assert told.startswith(b"HTTP/1.1 501 ")
        assert b"connection: close" in told.lower()
        assert told.count(b"HTTP/1.1 ") == 1
        assert len(replica.seen) == (1 if b"POST" in before else 0)


@pytest.mark.parametrize("method", [b"GET", b"POST"], ids=bytes.decode)
@pytest.mark.parametrize(
    "connection",
    [
        b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n",
        b"Connection: close, Upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: Upgrade\r\nConnection: CLOSE\r\nUpgrade: h2c\r\n",
        b"Connection: upgrade, close\r\n",
        b"Connection: te, Close\r\nTE: trailers\r\n",
    ],
)
async def test_a_close_beside_something_else_is_heard(connection: bytes, method: bytes) -> None:
    body = b'{"model":"m","prompt":"hi"}' if method == b"POST" else b""
    path = b"/v1/completions" if method == b"POST" else b"/health"
    head = b"%b %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n" % (method, path, connection, len(body))
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(head + body)
        told = await asyncio.wait_for(client.rest(), 10.0)
        assert told.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in told.lower()
        assert told.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("method", [b"GET", b"POST"], ids=bytes.decode)
@pytest.mark.parametrize("host", [b"", b"a", b"a.b-c_d:8000", b"[::1]:8000", b"10.0.0.1"])
async def test_what_may_be_a_host_is_served(method: bytes, host: bytes) -> None:
    body = b'{"model":"m","prompt":"hi"}' if method == b"POST" else b""
    path = b"/v1/completions" if method == b"POST" else b"/health"
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(
            b"%b %b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n" % (method, path, host, len(body)) + body
        )
        assert (await client.reply()).status == 200
