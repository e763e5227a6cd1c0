"""Everything on the ports that is not a POST on a fresh connection."""

import asyncio
import gzip

import pytest

from tests.fakes import (
    BODY,
    IDLE,
    MODEL,
    STREAM,
    FakeReplica,
    chunk,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    router_over,
    said,
    unchunked,
    until,
)


def got(path: bytes, *fields: bytes, method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"Host: router.test", *fields]) + b"\r\n\r\n"


async def asked(url, raw):
    async with client_of(url) as client:
        await client.send(raw)
        return await client.reply()


@pytest.fixture
async def replica():
    async with fake_replica() as started:
        yield started


@pytest.fixture
async def up(replica):
    async with router_over(replica, limits__body_bytes=4096, limits__header_bytes=16384) as started:
        yield started


@pytest.fixture
async def side(up):
    """A connection that the application has taken over."""
    async with client_of(up.url) as opened:
        await opened.send(got(b"/health"))
        assert (await opened.reply()).status == 200
        yield opened


async def test_models_are_merged_and_keep_what_the_router_does_not_know():
    first = {**MODEL, "permission": [{"id": "p", "allow": True}], "future": {"x": [1.5]}}
    adapter = {"id": "ad", "object": "model", "root": "/adapters/ad", "parent": "m"}
    async with fake_replica() as a, fake_replica() as b:
        a.models, b.models = [first], [{**MODEL, "created": 2}, adapter]
        async with router_over(a, b) as up:
            reply = await asked(up.url, got(b"/v1/models"))
            assert reply.json == {"object": "list", "data": [first, adapter]}
            assert reply.values(b"content-type") == [b"application/json"]


async def test_health_tells_how_replicas_stand():
    bad = FakeReplica(said(ok()), healthy=False)
    await bad.start()
    async with fake_replica() as good, router_over(good, bad) as up:
        reply = await asked(up.url, got(b"/health"))
        assert reply.status == 200
        assert reply.json["replicas_open"] == 1
        assert [one["state"] for one in reply.json["replicas"]] == ["open", "starting"]
    async with router_over(bad) as up:
        assert (await asked(up.url, got(b"/health"))).status == 503
        reply = await asked(up.url, got(b"/v1/models"))
        assert (reply.status, reply.error["code"]) == (503, "no_replica_available")
    await bad.stop()


async def test_unknown_paths_are_passed_on_with_their_method(up, replica):
    for method in (b"GET", b"DELETE", b"OPTIONS"):
        reply = await asked(up.url, got(b"/v1/files/a%2Fb?x=%20", b"X-A: 1", b"x-a: 2", method=method))
        assert (reply.status, unchunked_or_whole(reply)) == (200, b'{"ok":true}')
    assert [seen.line for seen in replica.seen] == [
        b"%b /v1/files/a%%2Fb?x=%%20 HTTP/1.1" % method for method in (b"GET", b"DELETE", b"OPTIONS")
    ]
    assert replica.seen[0].values(b"x-a") == [b"1", b"2"]
    assert replica.seen[0].values(b"accept-encoding") == []
    assert replica.seen[0].values(b"content-length") == []


def unchunked_or_whole(reply):
    return unchunked(reply.body) if reply.values(b"transfer-encoding") else reply.body


async def test_put_with_a_body(up, replica):
    raw = got(b"/v1/things", b"Content-Length: 3", method=b"PUT") + b"abc"
    assert (await asked(up.url, raw)).status == 200
    assert replica.seen[0].body == b"abc"


async def test_posts_on_a_connection_that_was_taken_over(side, replica):
    for _ in range(3):
        await side.send(post(BODY, b"Authorization: Bearer k"))
        reply = await side.reply()
        assert (reply.status, reply.body) == (200, b'{"ok":true}')
    assert [seen.body for seen in replica.seen] == [BODY] * 3
    assert replica.seen[0].values(b"authorization") == [b"Bearer k"]


async def test_a_stream_on_a_connection_that_was_taken_over(side, replica, up):
    go = asyncio.Event()

    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.wait_for(go.wait(), 5)
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    replica.answer = answer
    await side.send(post())
    head = await side.head()
    assert b"text/event-stream" in head
    assert b"Content-Length" not in head
    await side.to(b"data: 1\n\n")
    go.set()
    assert (await side.to(b"0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    await until(lambda: load_of(up) == IDLE)


async def test_a_compressed_reply_on_a_connection_that_was_taken_over(side, replica):
    packed = gzip.compress(b"{}")
    replica.answer = said(ok(packed, b"Content-Encoding: gzip", b"Set-Cookie: a=1", b"Set-Cookie: b=2"))
    await side.send(post())
    reply = await side.reply()
    assert (reply.body, reply.values(b"content-encoding")) == (packed, [b"gzip"])
    assert reply.values(b"set-cookie") == [b"a=1", b"b=2"]


async def test_a_compressed_request_on_a_connection_that_was_taken_over(side, replica):
    packed = gzip.compress(b"x" * 100)
    await side.send(post(packed, b"Content-Encoding: gzip", path=b"/v1/unknown"))
    assert (await side.reply()).status == 200
    assert replica.seen[0].body == packed


async def test_errors_on_a_connection_that_was_taken_over(side, replica):
    await side.send(post(b"{"))
    reply = await side.reply()
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    await side.send(post(b'{"model":"m","prompt":"%b"}' % (b"a" * 5000)))
    reply = await side.reply()
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert replica.seen == []


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
async def test_a_get_with_too_large_a_head_does_not_echo_it(up, replica, caplog, end):
    raw = b"GET /v1/files HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + b"s3cret" * (6000 if end else 50_000) + end
    async with client_of(up.url) as client:
        await client.send(raw)
        try:
            said_back = await client.rest()
        except ConnectionError:
            said_back = b""
        assert b"s3cret" not in said_back
    assert "s3cret" not in caplog.text
    assert replica.seen == []


@pytest.mark.parametrize(
    "fields", [b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"Host: b", b"bad header\x00: 1"]
)
async def test_ambiguous_framing_of_a_get_is_refused(up, replica, fields):
    reply = await asked(up.url, b"GET /v1/files HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n\r\n0\r\n\r\n")
    assert reply.status == 400
    assert replica.seen == []


async def test_head_of_a_refused_path_has_no_body(up):
    async with client_of(up.url) as client:
        await client.send(got(b"/sleep", method=b"HEAD"))
        assert (await client.reply(bodiless=True)).status == 404
        await client.send(got(b"/health"))
        assert (await client.reply()).status == 200


async def test_a_fault_of_the_router_is_no_hang(side, up):
    def broken(*_):
        raise RuntimeError("a fault")

    up.gateway.ears.append(broken)
    await side.send(post())
    try:
        raw = await side.rest()
    except ConnectionError:
        raw = b""
    assert b" 200 " not in raw


async def test_a_slow_client_stops_the_replica_on_the_side_path(replica, side, up):
    async def answer(exchange):
        await exchange.send(STREAM)
        for _ in range(1500):
            await exchange.send(chunk(b"d" * 65536))
        await exchange.send(chunk(b""))

    replica.answer = answer
    side.writer.transport.pause_reading()
    await side.send(post())
    before = -1
    async with asyncio.timeout(20):
        while replica.sent_bytes == 0 or replica.sent_bytes != before:
            before = replica.sent_bytes
            await asyncio.sleep(0.3)  # the sign of back-pressure is that nothing moves for a while
    assert replica.sent_bytes < 32 * 1024 * 1024
    side.reset()
    await until(lambda: load_of(up) == IDLE)


async def test_metrics_are_on_the_admin_port(up):
    async with client_of(up.url) as client:
        await client.send(post())
        await client.reply()
    reply = await asked(up.admin_url, got(b"/metrics"))
    assert reply.status == 200
    assert b"/v1/completions" in reply.body
    state = (await asked(up.admin_url, got(b"/state"))).json
    assert state["replicas_open"] == 1
    assert state["replicas"][0]["cache"]["known"] == "APPROXIMATE"
    assert "cache" not in (await asked(up.url, got(b"/health"))).json["replicas"][0]


async def test_explain_chooses_without_sending(up, replica):
    before = load_of(up)
    reply = await asked(up.admin_url, post(BODY, path=b"/explain?path=/v1/completions"))
    assert reply.status == 200
    assert reply.json["choice"]["replica"] == "r1"
    assert reply.json["model"] == "m"
    reply = await asked(up.admin_url, post(b'{"model":"other"}', path=b"/explain"))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert load_of(up) == before == IDLE
    assert replica.seen == []


async def test_explain_is_not_on_the_public_port(up, replica):
    replica.answer = said(ok(b"{}", status=b"404 Not Found"))
    reply = await asked(up.url, post(BODY, path=b"/explain"))
    assert (reply.status, reply.body) == (404, b"{}")


async def test_draining_lets_a_stream_end(replica, up):
    go = asyncio.Event()

    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.wait_for(go.wait(), 5)
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    replica.answer = answer
    async with client_of(up.url) as client:
        await client.send(post())
        await client.head()
        draining = asyncio.ensure_future(up.drained(5))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await asked(up.url, post())
        assert not draining.done()
        go.set()
        assert (await client.rest()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert await draining is True


@pytest.mark.parametrize("taken_over", [False, True])
async def test_draining_has_a_limit(replica, up, taken_over):
    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await exchange.left()

    replica.answer = answer
    async with client_of(up.url) as client:
        if taken_over:
            await client.send(got(b"/health"))
            await client.reply()
        await client.send(post())
        await client.head()
        assert await up.drained(0.1) is False
        try:
            rest = await client.rest()
        except ConnectionError:
            rest = b""
        assert b"0\r\n\r\n" not in rest
    await until(lambda: load_of(up) == IDLE)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization Bearer s3cret\r\n\r\n", 400),
        (b"s3cret s3cret s3cret\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + b"s3cret" * 6000 + b"\r\n\r\n", 431),
    ],
    ids=["no colon", "no request", "too long"],
)
async def test_the_admin_port_does_not_repeat_what_it_could_not_read(up, caplog, raw, status):
    reply = await asked(up.admin_url, raw)
    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"
    assert b"s3cret" not in reply.head + reply.body
    assert "s3cret" not in caplog.text
    assert (await asked(up.admin_url, got(b"/metrics"))).status == 200


@pytest.mark.parametrize("raw", [got(b"/s3cret?key=s3cret"), got(b"/explain"), post(BODY)])
async def test_the_admin_port_says_what_it_serves(up, raw):
    reply = await asked(up.admin_url, raw)
    assert (reply.status, reply.error["code"]) == (404, "path_not_served")
    for path in ("GET /metrics", "POST /explain", "GET /hits", "GET /doctor", "POST /admin/replicas"):
        assert path in reply.error["message"]
    assert b"s3cret" not in reply.body


async def test_the_admin_port_takes_a_body_as_large_as_the_public_one(up):
    reply = await asked(up.admin_url, post(b'{"prompt":"' + b"x" * 5000 + b'"}', path=b"/explain"))
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
