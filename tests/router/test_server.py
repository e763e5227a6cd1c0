"""What a client may send, in whatever pieces, and what it is told when it may not."""

import asyncio
import hashlib
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.listener import Listener
from router.http.messages import Framing, Limits
from router.http.server import ClientConnection
from tests.fakes import (
    BODY,
    IDLE,
    FakeTransport,
    chunk,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    posted,
    router_over,
    until,
)


@pytest.fixture
async def replica():
    async with fake_replica() as started:
        yield started


@pytest.fixture
async def up(replica):
    async with router_over(replica, limits__body_bytes=4096, limits__header_bytes=16384) as started:
        yield started


@pytest.fixture
async def client(up):
    async with client_of(up.url) as opened:
        yield opened


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
SMUGGLED = {
    "content length and chunked": (HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    "chunked and content length": (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", {400}),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 5\r\n\r\nabcde", {400}),
    "two equal lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", {400}),
    "signed length": (HEAD + b"Content-Length: +1\r\n\r\na", {400}),
    "gzip, chunked": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    "two codings": (HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    "space before the colon": (HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", {400}),
    "folded header": (HEAD + b"X-A: 1\r\n Content-Length: 5\r\nContent-Length: 2\r\n\r\n{}", {400}),
    "two authorizations": (
        HEAD + b"Authorization: Bearer key-alpha\r\nAuthorization: Bearer key-beta\r\nContent-Length: 2\r\n\r\n{}",
        {400},
    ),
    "two hosts": (HEAD + b"Host: b\r\nContent-Length: 2\r\n\r\n{}", {400}),
    "no colon": (HEAD + b"nonsense\r\n\r\n", {400}),
    "bare line feeds": (b"POST /v1/completions HTTP/1.1\nHost: a\nContent-Length: 2\n\n{}", {400}),
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_ambiguous_framing_is_refused_and_reaches_no_replica(client, replica, name):
    raw, statuses = SMUGGLED[name]
    await client.send(raw + post())
    reply = await client.reply()
    assert reply.status in statuses
    assert reply.error["message"]
    assert reply.values(b"connection") == [b"close"]
    assert b"key-" not in reply.body
    assert await client.rest() == b""
    assert replica.seen == []


async def test_a_header_of_nine_kilobytes_is_fine(up, replica):
    assert (await posted(up.url, BODY, b"X-Long: " + b"a" * 9216)).status == 200
    assert replica.seen[0].values(b"x-long") == [b"a" * 9216]


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
@pytest.mark.parametrize("name", [b"Authorization: Bearer ", b"X-Long: "])
async def test_a_head_over_the_limit_is_431_without_an_echo(client, replica, name, end, caplog):
    await client.send(HEAD + name + b"s3cret" * (6000 if end else 100_000) + end)  # without an end: several reads
    reply = await client.reply()
    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
    assert "16384" in reply.error["message"]
    assert b"s3cret" not in reply.body
    assert "s3cret" not in caplog.text
    assert replica.seen == []


async def test_many_small_headers_count_too(client):
    await client.send(HEAD + b"".join(b"X-%d: 12345678\r\n" % number for number in range(2000)) + b"\r\n")
    assert (await client.reply()).status == 431


async def test_a_body_at_the_limit_passes_and_one_over_it_is_413(up, replica):
    body = b'{"model":"m","prompt":"%b"}'
    body %= b"a" * (4096 - len(body) + 2)
    assert (await posted(up.url, body)).status == 200
    reply = await posted(up.url, body + b" ")
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert "4096" in reply.error["message"]
    assert len(replica.seen) == 1


async def test_a_large_chunked_body_is_413_and_the_answer_can_be_read(client, replica):
    await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(40):
        await client.send(chunk(b"x" * 1000))
    reply = await client.reply()
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert replica.seen == []


async def test_a_body_over_the_limit_that_keeps_coming_does_not_reset_the_answer(client):
    await client.send(HEAD + b"Content-Length: 3000000\r\n\r\n")
    for _ in range(30):
        await client.send(b"x" * 100_000)
    assert (await client.reply()).status == 413


async def test_a_request_byte_by_byte(client, replica):
    for byte in post():
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await client.reply()).status == 200
    assert replica.seen[0].body == BODY


@pytest.mark.parametrize("size", [3, 40, 200])
async def test_pipelined_posts_are_answered_in_order(client, replica, size):
    async def echo(exchange):
        await exchange.send(ok(exchange.seen.body))

    replica.answer = echo
    bodies = [b'{"model":"m","prompt":"%d"}' % number for number in range(5)]
    raw = b"".join(post(body) for body in bodies)
    for start in range(0, len(raw), size):
        await client.send(raw[start : start + size])
        await asyncio.sleep(0)
    assert [(await client.reply()).body for _ in bodies] == bodies


async def test_a_bad_request_behind_a_good_one_spoils_only_itself(client):
    await client.send(post() + SMUGGLED["two lengths"][0])
    assert (await client.reply()).status == 200
    assert (await client.reply()).status == 400


async def test_each_pipelined_request_is_answered_in_its_own_version(client, replica):
    replica.answer = None
    from tests.fakes import STREAM, said

    replica.answer = said(STREAM + chunk(b"data: [DONE]\n\n") + chunk(b""))
    await client.send(post() + post(version=b"1.0"))
    assert (await client.reply()).values(b"transfer-encoding") == [b"chunked"]
    last = await client.reply()
    assert (last.body, last.values(b"transfer-encoding")) == (b"data: [DONE]\n\n", [])


async def test_a_get_behind_posts_on_one_connection(client):
    await client.send(post())
    assert (await client.reply()).status == 200
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await client.reply()).json["data"][0]["id"] == "m"
    await client.send(post())
    assert (await client.reply()).body == b'{"ok":true}'


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_upgrade_is_ignored_and_the_request_served(client, replica, framing):
    fields = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    if framing == "length":
        raw = HEAD + fields + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    else:
        raw = HEAD + fields + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + chunk(b"")
    for _ in range(2):
        await client.send(raw)
        assert (await client.reply()).status == 200
    assert [seen.body for seen in replica.seen] == [BODY, BODY]
    assert b"pgrade" not in replica.seen[0].head


async def test_an_upgrade_in_pieces(client, replica):
    raw = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    for start in range(0, len(raw), 11):
        await client.send(raw[start : start + 11])
        await asyncio.sleep(0.001)
    assert (await client.reply()).status == 200
    await client.send(post())
    assert (await client.reply()).status == 200
    assert [seen.body for seen in replica.seen] == [BODY, BODY]


@pytest.mark.parametrize(("version", "status"), [(b"1.1", 400), (b"1.0", 200)])
async def test_a_request_of_http_1_1_names_its_host(client, version, status):
    await client.send(
        HEAD.replace(b"Host: a\r\n", b"").replace(b"1.1", version) + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    )
    assert (await client.reply()).status == status


async def test_connect_sent_ahead_closes_the_connection_behind_the_reply_before(client, up):
    await client.send(post() + b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n" + post())
    assert (await client.reply()).status == 200
    assert await client.rest() == b""
    assert (await posted(up.url, BODY)).status == 200


async def test_upgrades_sent_ahead_are_refused_from_the_second_on(client):
    """Each was once a step deeper in the stack: a few thousand ended the process."""
    asking = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    await client.send(asking * 1000)
    first = await client.reply()
    assert first.status == 200
    second = await client.reply()
    assert (second.status, second.error["message"]) == (400, "more than one request with Upgrade was sent ahead")


async def test_expect_continue_is_answered_before_the_body(client, replica):
    await client.send(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(BODY)
    assert (await client.reply()).status == 200
    assert replica.seen[0].values(b"expect") == []


async def test_expect_continue_of_a_body_that_is_too_large_is_413_at_once(client):
    await client.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n")
    assert (await client.reply()).status == 413


async def test_connection_close_is_honoured(client):
    await client.send(post(BODY, b"Connection: close"))
    reply = await client.reply()
    assert reply.values(b"connection") == [b"close"]
    assert await client.rest() == b""


async def test_a_whole_url_as_target(client, replica):
    await client.send(post(path=b"http://router.test/v1/completions?x=1"))
    assert (await client.reply()).status == 200
    assert replica.seen[0].line == b"POST /v1/completions?x=1 HTTP/1.1"


async def test_twenty_megabytes_arrive_whole(replica):
    body = json.dumps({"model": "m", "prompt": [7] * 10, "image": "A" * 20_000_000}).encode()
    async with router_over(replica) as up, client_of(up.url) as client:
        await client.send(post(body))
        assert (await client.reply()).status == 200
        assert hashlib.sha256(replica.seen[0].body).digest() == hashlib.sha256(body).digest()
        await until(lambda: load_of(up) == IDLE)


async def test_a_client_that_leaves_in_the_middle_of_its_request(up, replica):
    async with client_of(up.url) as client:
        await client.send(post()[:-5])
    assert (await posted(up.url)).status == 200
    assert len(replica.seen) == 1


async def test_idle_connections_are_closed_when_the_router_drains(up):
    async with client_of(up.url) as client:
        await client.send(post())
        assert (await client.reply()).status == 200
        assert await up.drained(5) is True
        assert await client.rest() == b""
    with pytest.raises(ConnectionError):
        await posted(up.url)


class Source:
    """Counts how often a reply's bytes were held up."""

    def __init__(self) -> None:
        self.pauses = 0

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        pass


def connected(serve, body_bytes: int = 1000) -> tuple[ClientConnection, FakeTransport]:
    transport = FakeTransport()
    connection = ClientConnection(Listener(serve, Limits(1000, body_bytes), asyncio.Protocol, set()))
    connection.connection_made(transport)
    return connection, transport


async def test_a_client_that_has_not_read_one_reply_holds_up_the_next():
    sources = []

    async def serve(call, reply):
        reply.source = source = Source()
        sources.append(source)
        reply.head(200, b"OK", [(b"Content-Length", b"0")], Framing.SIZED)
        reply.end()

    connection, _ = connected(serve)
    connection.data_received(post())
    await until(lambda: len(sources) == 1 and not connection.busy)
    connection.pause_writing()
    connection.data_received(post())
    await until(lambda: len(sources) == 2 and not connection.busy)
    connection.resume_writing()
    connection.data_received(post())
    await until(lambda: len(sources) == 3 and not connection.busy)
    assert [source.pauses for source in sources] == [0, 1, 0]


async def test_a_client_that_sends_ahead_is_read_no_further_than_a_bound():
    go = asyncio.Event()

    async def serve(call, reply):
        await go.wait()
        reply.head(200, b"OK", [(b"Content-Length", b"0")], Framing.SIZED)
        reply.end()

    connection, transport = connected(serve)
    connection.data_received(post())
    for _ in range(30):
        connection.data_received(post(b"x" * 900) * 10)
        if transport.paused:
            break
    assert transport.paused
    go.set()
    await until(lambda: not connection.busy and not transport.paused and transport.written.count(b"200 OK") > 60)


REQUESTS = (
    post(b'{"a":1}')
    + HEAD
    + b"Transfer-Encoding: chunked\r\nConnection: X-B\r\nX-B: 1\r\n\r\n"
    + chunk(b"ab")
    + chunk(b"")
    + HEAD
    + b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 3\r\n\r\nabc"
    + post(b"")
    + post(b"POST / HTTP/1.1\r\n\r\n", b"Connection: close")
)


@given(cuts=st.sets(st.integers(1, len(REQUESTS) - 1), max_size=20))
def test_requests_are_the_same_however_they_are_cut(cuts):
    seen = []

    async def serve(call, reply):
        seen.append((call.target, call.body, [name for name, _ in call.headers]))
        reply.head(200, b"OK", [(b"Content-Length", b"0")], Framing.SIZED)
        reply.end()

    async def life():
        connection, transport = connected(serve)
        places = [0, *sorted(cuts), len(REQUESTS)]
        for start, end in pairwise(places):
            connection.data_received(REQUESTS[start:end])
            await asyncio.sleep(0)
        await until(transport.is_closing)

    asyncio.run(life())
    assert [body for _, body, _ in seen] == [b'{"a":1}', b"ab", b"abc", b"", b"POST / HTTP/1.1\r\n\r\n"]
    assert all(names == [] for _, _, names in seen)


@pytest.mark.parametrize("endless", [b"0\r\nX-T: ", b"5;x="], ids=["trailer", "beside a length"])
async def test_what_goes_on_behind_a_head_without_being_body_is_bounded(endless):
    """llhttp keeps a trailer until it is whole, and a client that sends it for ever must not fill the memory."""
    connection, transport = connected(None)
    connection.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"{") + endless)
    for _ in range(3):
        connection.data_received(b"a" * 1024)
    assert transport.written.startswith(b"HTTP/1.1 431 ")
    assert b"headers_too_large" in transport.written
    connection._transport.abort()


async def test_a_body_in_tiny_chunks_byte_by_byte_is_no_head():
    seen = []

    async def serve(call, reply):
        seen.append(call.body)

    connection, _ = connected(serve)
    raw = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"a") * 900 + chunk(b"")
    for at in range(len(raw)):
        connection.data_received(raw[at : at + 1])
    await until(lambda: seen == [b"a" * 900])


async def test_a_body_in_very_many_chunks_is_kept_in_few_pieces():
    seen = []

    async def serve(call, reply):
        seen.append(call.body)

    connection, _ = connected(serve, body_bytes=20_000)
    connection.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"ab") * 5000)
    assert len(connection._body) <= 1024
    connection.data_received(chunk(b"c") + chunk(b""))
    await until(lambda: seen == [b"ab" * 5000 + b"c"])


async def test_a_head_that_begins_behind_another_request_is_measured_whole():
    async def serve(call, reply):
        reply.head(200, b"OK", [(b"Content-Length", b"0")], Framing.SIZED)
        reply.end()

    connection, transport = connected(serve)
    connection.data_received(post() + HEAD + b"X-A: " + b"a" * 600)
    await until(lambda: not connection.busy)
    connection.data_received(b"a" * 600 + b"\r\nContent-Length: 0\r\n\r\n")
    assert b"HTTP/1.1 431 " in transport.written
    connection._transport.abort()


class ClosedTransport:
    """A socket that is gone, as uvloop shows it: writing to it raises."""

    def set_write_buffer_limits(self, high):
        pass

    def get_extra_info(self, name):
        return None

    def is_closing(self):
        return True

    def write(self, data):
        raise RuntimeError("the handler is closed")


async def test_a_reply_that_meets_a_client_just_gone_is_dropped():
    connections = set()
    connection = ClientConnection(Listener(None, Limits(), asyncio.Protocol, connections))
    connection.connection_made(ClosedTransport())

    connection.head(200, b"OK", [], Framing.OPEN)
    connection.write(b"data: 1")
    connection.end()
    connection.connection_lost(None)

    assert connections == set()
