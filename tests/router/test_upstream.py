"""What reaches a replica and what comes back: bytes, headers, framing."""

import asyncio
import base64
import gzip
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
    BODY,
    IDLE,
    STREAM,
    FakeTransport,
    chunk,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    posted,
    router_over,
    said,
    unchunked,
    until,
)

ODD_BODIES = [
    b'{"model":"m","model":"m","prompt":"twice"}',
    b'{"model":"m","seed":9007199254740993,"prompt":"x"}',
    b'{"model":"m","seed":123456789012345678901234567890,"prompt":"x"}',
    b'{"model":"m","prompt":"caf\\u00e9 \\ud83d\\ude00"}',
    '{"model":"m","prompt":"北京 😀"}'.encode(),
    b'  {\r\n\t"model" :\n"m" , "prompt" : [ 1,2 , 3 ] }\n\n',
    b'{"model":"m","x":2.50,"y":1e-7,"z":1E+2,"w":-0.0}',
    b'{"model":"m","prompt":"a\\/b\\u002fc"}',
    b'{"zz_future":{"b":2,"a":1},"stop":null,"model":"m","top_k":-1}',
    b'{"model":"m","prompt":"\\u0000\\u2028"}',
    b'{"model":"m","stream":false,"stream_options":{"include_usage":true}}',
    (
        b'{"messages":[{"role":"user","content":"caf\\u00e9 \\ud83d\\ude00","x_msg":1}],"model":"m",'
        b'"vllm_xargs":{"a":[1,2.50,1e-7]},'
        b'"return_token_ids":true,"chat_template_kwargs":{"enable_thinking":false}}'
    ),
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
async def test_body_is_not_touched(body):
    async with fake_replica() as replica, router_over(replica) as up:
        path = b"/v1/chat/completions" if b"messages" in body else b"/v1/completions"
        assert (await posted(up.url, body, path=path)).status == 200
        assert [seen.body for seen in replica.seen] == [body]


async def test_chunked_request_body_arrives_whole():
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head + chunk(BODY[:7]) + chunk(BODY[7:]) + chunk(b""))
        assert (await client.reply()).status == 200
        assert replica.seen[0].body == BODY
        assert replica.seen[0].values(b"Content-Length") == [b"%d" % len(BODY)]
        assert replica.seen[0].values(b"Transfer-Encoding") == []


async def test_trailers_of_a_request_never_become_headers():
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head + chunk(BODY) + b"0\r\nAuthorization: Bearer trailing\r\nX-Late: 1\r\n\r\n")
        assert (await client.reply()).status == 200
        assert b"trailing" not in replica.seen[0].head
        assert b"X-Late" not in replica.seen[0].head


async def test_headers_are_kept_in_order_with_duplicates():
    fields = (
        b"X-Tag: one",
        b"x-tag: two",
        b"Content-Type: application/json",
        b"User-Agent: curl/8",
        b"X-Percent: 100%b",
    )
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(up.url, BODY, *fields)
        seen = replica.seen[0]
        assert seen.values(b"x-tag") == [b"one", b"two"]
        assert seen.values(b"user-agent") == [b"curl/8"]
        assert seen.values(b"x-percent") == [b"100%b"]
        assert seen.values(b"accept-encoding") == seen.values(b"accept") == []


async def test_nothing_is_invented_for_a_bare_client():
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(up.url)
        names = {name.lower() for name, _ in replica.seen[0].fields}
        assert names == {b"host", b"content-length", b"x-forwarded-for", b"x-forwarded-host"}


async def test_host_is_the_replicas_and_the_clients_is_told():
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(up.url)
        assert replica.seen[0].values(b"host") == [b"127.0.0.1:%d" % replica.port]
        assert replica.seen[0].values(b"x-forwarded-host") == [b"router.test"]


async def test_query_and_path_arrive_as_sent():
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(up.url, path=b"/v1/completions?a=%2F&b=%25b")
        assert replica.seen[0].line == b"POST /v1/completions?a=%2F&b=%25b HTTP/1.1"


async def test_forwarded_for_is_continued():
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(
            up.url, BODY, b"X-Forwarded-For: 10.0.0.1", b"X-Forwarded-For: 10.0.0.2", b"X-Forwarded-Host: front"
        )
        assert replica.seen[0].values(b"x-forwarded-for") == [b"10.0.0.1, 10.0.0.2, 127.0.0.1"]
        assert replica.seen[0].values(b"x-forwarded-host") == [b"front"]


async def test_what_connection_names_counts_for_nobody():
    """Or a client could unsay the router's own X-Forwarded-Host, and be a user of whom no replica hears."""
    fields = (b"Connection: close, X-Forwarded-Host, X-User", b"X-Forwarded-Host: front", b"X-User: eve")
    users = []
    async with fake_replica() as replica, router_over(replica, identity__user=["header:x-user"]) as up:
        up.gateway.ears.append(lambda request, _: users.append(request.user))
        await posted(up.url, BODY, *fields)
        await posted(up.url, BODY, b"Connection: close", *fields[1:])
        assert [seen.values(b"x-forwarded-host") for seen in replica.seen] == [[b"router.test"], [b"front"]]
        assert [seen.values(b"x-user") for seen in replica.seen] == [[], [b"eve"]]
        assert users == [None, "eve"]


async def test_hop_by_hop_headers_stay_on_their_connection_both_ways():
    answer = ok(
        b"{}",
        b"Connection: keep-alive, X-Internal",
        b"X-Internal: secret",
        b"Keep-Alive: timeout=99",
        b"Proxy-Authenticate: Basic",
        b"X-Kept: yes",
    )
    async with fake_replica(answer) as replica, router_over(replica) as up:
        reply = await posted(
            up.url,
            BODY,
            b"Connection: close, X-Drop-Me",
            b"X-Drop-Me: 1",
            b"Keep-Alive: timeout=5",
            b"Proxy-Authorization: Basic Zm9v",
            b"TE: trailers",
            b"Upgrade: h2c",
            b"X-Kept: 1",
        )
        for name in (b"connection", b"x-drop-me", b"keep-alive", b"proxy-authorization", b"te", b"upgrade"):
            assert replica.seen[0].values(name) == []
        assert replica.seen[0].values(b"x-kept") == [b"1"]
        for name in (b"x-internal", b"keep-alive", b"proxy-authenticate"):
            assert reply.values(name) == []
        assert reply.values(b"connection") == [b"close"]
        assert reply.values(b"x-kept") == [b"yes"]


OPAQUE = [
    (b"200 OK", b"gzip", gzip.compress(b'{"a":1}', mtime=0)),
    (b"400 Bad Request", b"gzip", gzip.compress(b'{"error":{"message":"too long"}}', mtime=0)),
    (b"200 OK", b"zstd", base64.b64decode("KLUv/QQAEQAAb2s=")),
    (b"500 Internal Server Error", b"gzip", b"not gzip at all"),
    (b"429 Too Many Requests", b"identity", b"slow down"),
    (b"503 Service Unavailable", b"identity", b'{"error":"queue full"}'),
    (b"422 Unprocessable Content", b"identity", b"{}"),
]


@pytest.mark.parametrize(("status", "coding", "body"), OPAQUE, ids=range(len(OPAQUE)))
async def test_any_reply_is_passed_on_as_it_came(status, coding, body):
    answer = ok(body, b"Content-Encoding: " + coding, b"Retry-After: 7", status=status)
    async with fake_replica(answer) as replica, router_over(replica) as up:
        reply = await posted(up.url)
        assert (reply.head.split(b"\r\n")[0], reply.body) == (b"HTTP/1.1 " + status, body)
        assert reply.values(b"content-encoding") == [coding]
        assert reply.values(b"content-length") == [b"%d" % len(body)]
        assert reply.values(b"retry-after") == [b"7"]
        assert reply.values(b"transfer-encoding") == []
        assert len(replica.seen) == 1


async def test_duplicate_reply_headers_survive():
    answer = ok(b"{}", b"Set-Cookie: a=1", b"Set-Cookie: b=2", b"Warning: 199 - one", b"Warning: 199 - two")
    async with fake_replica(answer) as replica, router_over(replica) as up:
        reply = await posted(up.url)
        assert reply.values(b"set-cookie") == [b"a=1", b"b=2"]
        assert reply.values(b"warning") == [b"199 - one", b"199 - two"]


async def test_chunks_and_trailers_keep_their_framing():
    raw = chunk(b'{"a":') + chunk(b"1}") + b"0\r\nX-Checksum: 5\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Checksum\r\n\r\n" + raw
    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        for _ in range(2):
            await client.send(post())
            reply = await client.reply()
            assert reply.body == raw
            assert reply.values(b"transfer-encoding") == [b"chunked"]
            assert reply.values(b"content-length") == []
        assert {seen.connection for seen in replica.seen} == {replica.seen[0].connection}


async def test_interim_replies_are_not_the_answer():
    parts = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", ok(b"{}")]

    async def answer(exchange):
        for part in parts:
            await exchange.send(part)

    for script in (answer, b"".join(parts)):
        async with fake_replica(script) as replica, router_over(replica) as up:
            reply = await posted(up.url)
            assert (reply.status, reply.body, reply.values(b"link")) == (200, b"{}", [])


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_reply_in_small_pieces(size):
    raw = STREAM + chunk('data: {"x":"北😀"}\n\n'.encode()) + chunk(b"data: [DONE]\n\n") + chunk(b"")

    async def answer(exchange):
        for start in range(0, len(raw), size):
            await exchange.send(raw[start : start + size])
            await asyncio.sleep(0)

    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(post())
        reply = await client.reply()
        assert reply.head + reply.body == raw


async def test_reply_that_ends_with_its_connection():
    async def answer(exchange):
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")
        await exchange.send(b" there")
        exchange.close()

    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        for _ in range(2):
            await client.send(post())
            reply = await client.reply()
            assert reply.values(b"transfer-encoding") == [b"chunked"]
            assert unchunked(reply.body) == b"hello there"
        await until(lambda: load_of(up) == IDLE)


ENDS = [
    b"data: [DONE]\n\n",
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    b'data: {"type":"response.completed"}\n\n',
]


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_that_ends_with_its_connection_must_say_that_it_ended(end):
    async def whole(exchange):
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n" + end)
        exchange.close()

    async def broken(exchange):
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n")
        exchange.close()

    async with fake_replica(whole) as replica, router_over(replica) as up:
        assert unchunked((await posted(up.url)).body).endswith(end)
        replica.answer = broken
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await posted(up.url)


async def test_http_1_0_client_gets_a_body_without_chunks():
    answer = STREAM + chunk(b"data: {}\n\n") + chunk(b"data: [DONE]\n\n") + chunk(b"")
    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(post(version=b"1.0"))
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert body == b"data: {}\n\ndata: [DONE]\n\n"
        assert b"transfer-encoding" not in head.lower()
        assert b"Connection: close" in head
        assert replica.seen[0].line.endswith(b"HTTP/1.1")


async def test_http_1_0_client_gets_a_measured_body():
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(post(version=b"1.0"))
        raw = await client.rest()
        assert raw.endswith(b'\r\n\r\n{"ok":true}')
        assert len(replica.seen) == 1


@pytest.mark.parametrize("headers", [b"Content-Length: 1234", b"Transfer-Encoding: chunked", b"X-None: 1"])
async def test_head_has_no_body(headers):
    answer = b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n\r\n"
    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        for _ in range(2):
            await client.send(b"HEAD /v1/files HTTP/1.1\r\nHost: r\r\n\r\n")
            reply = await client.reply(bodiless=True)
            assert reply.status == 200
        assert [seen.line for seen in replica.seen] == [b"HEAD /v1/files HTTP/1.1"] * 2


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_replies_without_a_body(status):
    answer = b"HTTP/1.1 " + status + b"\r\nX-A: 1\r\n\r\n"
    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        for _ in range(2):
            await client.send(post())
            reply = await client.reply(bodiless=True)
            assert reply.head.startswith(b"HTTP/1.1 " + status)
            assert reply.values(b"transfer-encoding") == []


BAD_REPLIES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    b"SSH-2.0-OpenSSH_9\r\n",
    b"HTTP/1.1 200 OK\r\nX-Big: " + b"a" * 300_000,
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
]


@pytest.mark.parametrize("raw", BAD_REPLIES, ids=["two framings", "two lengths", "ssh", "endless head", "upgrade"])
async def test_bytes_that_are_no_reply_are_502_not_the_clients_fault(raw):
    async with fake_replica(raw) as replica, router_over(replica) as up:
        reply = await posted(up.url)
        assert (reply.status, reply.error["code"]) == (502, "replica_unreachable")
        assert load_of(up) == IDLE


async def test_a_large_reply_header_passes():
    async with fake_replica(ok(b"{}", b"X-Big: " + b"a" * 9216)) as replica, router_over(replica) as up:
        assert (await posted(up.url)).values(b"x-big") == [b"a" * 9216]


async def test_surplus_bytes_never_reach_the_next_reply():
    async with fake_replica(ok(b"{}") + ok(b'{"forged":true}')) as replica, router_over(replica) as up:
        assert b"forged" not in (await posted(up.url)).body
        replica.answer = said(ok(b'{"n":3}'))
        assert (await posted(up.url)).body == b'{"n":3}'


@pytest.mark.parametrize("answer", [ok(b"{}"), STREAM + chunk(b"data: 1\n\n") + chunk(b""), ok(b"x\r\n")])
async def test_empty_lines_behind_a_reply_do_not_reach_the_client(answer):
    async with fake_replica(answer + b"\r\n\r\n") as replica, router_over(replica) as up:
        async with client_of(up.url) as client:
            await client.send(post())
            first = await client.reply()
            await client.send(post())
            second = await client.reply()  # raises when it does not begin with a status line
            assert (first.body, first.head) == (second.body, second.head)
        assert len({seen.connection for seen in replica.seen}) == 1


async def test_a_large_event_passes():
    event = b"data: " + b"x" * 600_000 + b"\n\n"
    answer = STREAM + chunk(event) + chunk(b"data: [DONE]\n\n") + chunk(b"")
    async with fake_replica(answer) as replica, router_over(replica) as up:
        assert unchunked((await posted(up.url)).body) == event + b"data: [DONE]\n\n"


async def test_a_client_that_does_not_read_stops_the_replica():
    piece = chunk(b"d" * 65536)
    total = 96 * 1024 * 1024 // 65536

    async def answer(exchange):
        await exchange.send(STREAM)
        for _ in range(total):
            await exchange.send(piece)
        await exchange.send(chunk(b""))

    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        client.writer.transport.pause_reading()
        probing = replica.open
        await client.send(post())
        before = -1
        async with asyncio.timeout(20):
            while replica.sent_bytes == 0 or replica.sent_bytes != before:
                before = replica.sent_bytes
                await asyncio.sleep(0.3)  # the sign of back-pressure is that nothing moves for a while
        assert replica.sent_bytes < 32 * 1024 * 1024
        assert load_of(up) != IDLE
        client.reset()
        await until(lambda: load_of(up) == IDLE)
        await until(lambda: replica.open <= probing)


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


async def test_a_client_that_ends_its_connection_is_told_so_in_the_head():
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(post(BODY, b"Connection: close"))
        assert b"\r\nConnection: close\r\n" in await client.head()


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
