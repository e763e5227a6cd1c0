"""What reaches a replica and what comes back: bytes, headers, framing."""

import asyncio
import base64
import gzip

import pytest

from tests.fakes import (
    BODY,
    IDLE,
    STREAM,
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


async def test_a_client_that_ends_its_connection_is_told_so_in_the_head():
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(post(BODY, b"Connection: close"))
        assert b"\r\nConnection: close\r\n" in await client.head()
