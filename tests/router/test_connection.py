"""One connection to a replica and the exchanges on it: bytes in pieces, what is held, who is told."""

import asyncio
import ssl
import weakref
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from router.http.connection import ReplicaConnection
from router.http.exchange import NOBODY, BrokenOff, TimedOut, Timeouts
from router.http.reading import READ_BYTES
from router.http.upstream import Upstream
from router.usage import usage
from tests.fakes import (
    STREAM,
    FakeTransport,
    chunk,
    client_of,
    fake_replica,
    ok,
    post,
    router_over,
    until,
)


class Content:
    """An attempt that takes any reply."""

    ear = None

    def declined(self, status, headers, first, whole):
        return None

    def began(self) -> None:
        pass


class Kept:
    """A reply that keeps what it is told."""

    def __init__(self, framed: bool) -> None:
        self.framed = framed
        self.source = None
        self.status = 0
        self.body = b""
        self.ended = self.aborted = False

    def verbatim(self) -> bool:
        return False

    def head(self, status, reason, headers, framing) -> None:
        self.status = status

    def flush(self) -> None:
        pass

    def write(self, data) -> None:
        self.body += data

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted = True


USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":32}}}\n\n'
)
EVENTS = [b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'] * 3 + [USAGE, b"data: [DONE]\n\n"]
CHUNKS = b"".join(map(chunk, EVENTS)) + chunk(b"")
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
REPLY = INTERIM + STREAM + CHUNKS


async def relayed(pieces, framed, attempt=None):
    upstream = Upstream("127.0.0.1", 1, timeouts=Timeouts(idle_s=None))
    connection, reply, transport = ReplicaConnection(upstream), Kept(framed), FakeTransport()
    connection.connection_made(transport)
    started = asyncio.ensure_future(connection.started(b"POST", reply, attempt or Content(), False))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    return await started, reply, transport


@given(cuts=st.sets(st.integers(1, len(REPLY) - 1), max_size=40), framed=st.booleans())
def test_a_reply_is_the_same_however_it_is_cut(cuts, framed):
    places = [0, *sorted(cuts), len(REPLY)]
    pieces = [REPLY[start:end] for start, end in pairwise(places)]
    ending, reply, transport = asyncio.run(relayed(pieces, framed))
    assert reply.body == (CHUNKS if framed else b"".join(EVENTS))
    assert (reply.status, reply.ended, reply.aborted) == (200, True, False)
    assert (ending.whole, ending.event_stream, transport.closed) == (True, True, False)
    told = usage(ending.tail)
    assert (told.prompt_tokens, told.cached_tokens, told.output_tokens) == (50, 32, 3)


async def test_the_usage_of_a_long_reply_is_in_its_kept_end():
    body = b'{"choices":[{"text":"' + b"a" * 200_000 + b'"}],"usage":{"prompt_tokens":9,"completion_tokens":4}}'
    raw = ok(body)
    pieces = [raw[start : start + 50_000] for start in range(0, len(raw), 50_000)]
    ending, _, _ = await relayed(pieces, True)
    assert usage(ending.tail).prompt_tokens == 9
    assert len(ending.tail) <= 64 * 1024


SIZED = b"Content-Length: 2\r\n\r\n"
ODD_HEADS = [
    (b"HTTP/1.1 200 Fine\r\nx-a: 1\r\nX-A: 2\r\n", b"HTTP/1.1 200 Fine\r\nx-a: 1\r\nX-A: 2\r\n"),
    (b"HTTP/1.1 200 \r\n", b"HTTP/1.1 200 \r\n"),
    (b"HTTP/1.1 200\r\n", b"HTTP/1.1 200 Unknown\r\n"),
    (b"HTTP/1.1 200 OK\r\nX-A:1\r\n", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n"),
    (b"HTTP/1.1 200 OK\r\nX-A: \t 1\r\n", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n"),
    (b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\n"),
    (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n", b"HTTP/1.1 200 OK\r\n"),
]


@pytest.mark.parametrize(("sent", "came"), ODD_HEADS)
async def test_a_head_goes_on_as_it_came_unless_it_is_odd_or_of_its_connection(sent, came):
    async with fake_replica(sent + SIZED + b"{}") as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(post())
        assert await client.head() == came + SIZED


async def test_empty_lines_before_a_reply_are_no_interim_reply():
    ending, reply, _ = await relayed([b"\r\n" + ok(b"{}")], True)
    assert (ending.whole, reply.status, reply.body) == (True, 200, b"{}")


async def test_what_goes_on_when_a_replica_is_taken_out_is_given_up_in_its_silence():
    async def silent(exchange):
        await exchange.reader.read()

    async with fake_replica(silent) as replica:
        host, port = urlsplit(replica.url).netloc.split(":")
        upstream = Upstream(host, int(port), timeouts=Timeouts(first_byte_s=0.1, idle_s=None))
        going = asyncio.ensure_future(upstream.exchange(post(), Kept(True), Content()))
        await until(lambda: len(replica.seen) == 1)
        upstream.close()
        async with asyncio.timeout(5):
            with pytest.raises(TimedOut):
                await going


@pytest.mark.parametrize("left", [False, True], ids=["stays", "leaves"])
async def test_a_connection_that_is_used_again_at_once_is_looked_after_all_the_same(left):
    """The next exchange may begin before the task of the one before it has woken up; that one may also be cancelled."""
    upstream = Upstream("127.0.0.1", 1, timeouts=Timeouts(idle_s=None))
    connection, transport = ReplicaConnection(upstream), FakeTransport()
    connection.connection_made(transport)
    upstream.kept(connection)
    first = asyncio.ensure_future(upstream.exchange(b"POST 1", Kept(True), Content()))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(upstream.exchange(b"POST 2", Kept(True), Content()))
    connection.data_received(ok())
    if left:
        first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0)
    assert transport.written == b"POST 1POST 2"
    assert not transport.aborted
    upstream.given_up(TimedOut("it hangs"))
    with pytest.raises(TimedOut, match="it hangs"):
        await second


class Listening(Content):
    """An attempt that wants all of a reply's body."""

    def __init__(self) -> None:
        self.ear = self
        self.body = b""

    def heard(self, piece) -> None:
        self.body += piece


@given(
    sizes=st.lists(st.sampled_from([1, 700, 3_000, 5_000, 20_000, 33_000, 70_000]), min_size=1, max_size=12),
    kind=st.sampled_from([b"text/event-stream", b"application/json"]),
)
def test_whoever_listens_hears_every_byte_once(sizes, kind):
    pieces = [bytes([97 + place]) * size for place, size in enumerate(sizes)]
    body = b"".join(pieces)
    attempt = Listening()
    replied = relayed([ok(body, b"Content-Type: " + kind)[: -len(body)], *pieces], True, attempt)
    ending, reply, _ = asyncio.run(replied)
    assert reply.body == body
    assert attempt.body + ending.tail == body
    assert len(ending.tail) <= 64 * 1024


class Stopping(Kept):
    """A reply whose client takes each piece late."""

    def __init__(self) -> None:
        super().__init__(True)
        self.largest_bytes = 0

    def write(self, data) -> None:
        if self.body:  # what it does not take of the first piece is what tells of it
            self.largest_bytes = max(self.largest_bytes, len(data))
        super().write(data)
        self.source.pause()
        asyncio.get_running_loop().call_soon(self.resumed)

    def resumed(self) -> None:
        if self.source is not None:
            self.source.resume()


async def held_back(tls, **server) -> None:
    body = bytes(range(256)) * 2048

    async def answer(exchange) -> None:
        await exchange.send(STREAM + chunk(b"data: 1"))
        await exchange.send(chunk(body) + chunk(b""))

    async with fake_replica(answer) as replica:
        listening = await asyncio.start_server(replica._connected, "127.0.0.1", 0, **server)
        port = listening.sockets[0].getsockname()[1]
        upstream = Upstream("127.0.0.1", port, timeouts=Timeouts(idle_s=None), tls=tls)
        for _ in range(3):
            reply = Stopping()
            async with asyncio.timeout(10):
                ending = await upstream.exchange(post(), reply, Content())
            assert ending.whole
            assert reply.body == chunk(b"data: 1") + chunk(body) + chunk(b"")
            assert reply.largest_bytes <= READ_BYTES
        assert replica.connections == 1
        upstream.close()
        listening.close()
        await until(lambda: replica.open == 0)


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_reply_that_must_wait_is_read_in_small_pieces_and_its_connection_used_again(secured, run, tmp_path):
    tls, server = None, {}
    if secured:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        server["ssl"] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(server["ssl"])
    run(held_back(tls, **server))


async def test_an_idle_connection_holds_nothing_of_its_last_exchange():
    upstream = Upstream("127.0.0.1", 1, timeouts=Timeouts(idle_s=None))
    connection = ReplicaConnection(upstream)
    connection.connection_made(FakeTransport())
    upstream.kept(connection)
    attempt, reply = Listening(), Kept(True)
    held = [weakref.ref(attempt), weakref.ref(reply)]
    attempt.ear = None  # no circle
    going = asyncio.ensure_future(upstream.exchange(b"POST", reply, attempt))
    await asyncio.sleep(0)
    connection.data_received(ok())
    assert (await going).whole
    del attempt, reply, going
    await asyncio.sleep(0)
    assert [ref() for ref in held] == [None, None]


@pytest.mark.parametrize("cut", [False, True])
async def test_a_closed_connection_holds_nothing_of_its_last_reply(cut):
    """Itself it is a circle with its parser, so it stays until the collector looks."""
    connection = ReplicaConnection(Upstream("127.0.0.1", 1, timeouts=Timeouts(idle_s=None)))
    connection.connection_made(FakeTransport())
    reply = Kept(True)
    held = weakref.ref(reply)
    ending = connection.started(b"POST", reply, NOBODY, False)
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 20\r\n\r\n"
    connection.data_received(head + b"x" * 20 if not cut else head)
    connection.connection_lost(None)
    ended = await asyncio.gather(ending, return_exceptions=True)
    assert isinstance(ended[0], BrokenOff) is cut
    del reply, ending, ended
    assert held() is None
