"""Web pages that ask a router, as browsers ask for them: by raw bytes, on both paths of the port."""

import pytest

from router.config import load
from router.errors import ConfigError
from tests.fakes import BODY, STREAM, Answered, chunk, client_of, fake_replica, ok, post, posted, router_over
from tests.tenanted import tenanted

PAGE = b"https://chat.example.com"
FROM_PAGE = b"Origin: " + PAGE
OURS = {b"access-control-allow-origin": PAGE, b"access-control-expose-headers": b"*", b"vary": b"Origin"}
ALLOWED = {"cors__allow_origins": f"{PAGE.decode()},http://localhost:3000"}
OTHERS = ok(b"{}", b"Content-Type: application/json", b"access-control-allow-origin: *", b"Access-Control-Max-Age: 1")
"""A replica that answers every page, as vLLM does by default."""


def said(reply: Answered) -> dict[bytes, bytes]:
    """What a reply tells browsers; fails when it tells one thing twice."""
    fields = [(name.lower(), value) for name, value in reply.fields]
    told = [field for field in fields if field[0].startswith(b"access-control-") or field[0] == b"vary"]
    assert len(dict(told)) == len(told)
    return dict(told)


def preflight(*fields: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    lines = [b"OPTIONS " + path + b" HTTP/1.1", b"Host: router.test", *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


ASKS = preflight(
    FROM_PAGE, b"Access-Control-Request-Method: POST", b"Access-Control-Request-Headers: authorization,content-type"
)


async def asked(url: str, raw: bytes) -> Answered:
    async with client_of(url) as client:
        await client.send(raw)
        return await client.reply()


async def test_the_question_before_a_request_is_answered_here() -> None:
    async with fake_replica() as replica, router_over(replica, **ALLOWED) as up:
        reply = await asked(up.url, ASKS)
        assert reply.status == 204
        assert said(reply) == {
            **OURS,
            b"access-control-allow-methods": b"GET, HEAD, POST, PUT, PATCH, DELETE",
            b"access-control-allow-headers": b"authorization,content-type",
            b"access-control-max-age": b"600",
        }
        assert replica.seen == []


async def test_it_needs_no_key(tmp_path) -> None:
    async with fake_replica() as replica, tenanted(tmp_path, replica, **ALLOWED) as up:
        assert (await asked(up.url, ASKS)).status == 204
        refused = await posted(up.url, BODY, FROM_PAGE)
        assert refused.status == 401
        assert said(refused) == OURS  # or the page could not tell its user why


async def test_what_is_refused_before_it_is_read_is_told_too(tmp_path) -> None:
    """Of a picture for a key that ended a page learns as much as of a short question."""
    large = b'{"model":"m","prompt":"%b"}' % (b"x" * 200_000)
    async with fake_replica() as replica, tenanted(tmp_path, replica, limits__body_bytes=300_000, **ALLOWED) as up:
        stranger = await posted(up.url, large, FROM_PAGE, b"Authorization: Bearer nobody")
        assert (stranger.status, said(stranger)) == (401, OURS)
        too_large = await posted(up.url, large * 2, FROM_PAGE)
        assert (too_large.status, said(too_large)) == (413, OURS)
        other = await posted(up.url, large, b"Origin: https://evil.example")
        assert (other.status, said(other)) == (401, {b"vary": b"Origin"})
        no_request = await asked(up.url, b"POST / HTTP/1.1\r\nno colon\r\n\r\n")
        assert (no_request.status, said(no_request)) == (400, {b"vary": b"Origin"})


async def test_another_page_is_refused_before_it_asks_and_may_not_read_what_it_asks() -> None:
    async with fake_replica(OTHERS) as replica, router_over(replica, **ALLOWED) as up:
        question = preflight(b"Origin: https://chat.example.com.evil", b"Access-Control-Request-Method: POST")
        refused = await asked(up.url, question)
        assert refused.status == 403
        assert refused.error["code"] == "origin_not_allowed"
        assert said(refused) == {b"vary": b"Origin"}
        reply = await posted(up.url, BODY, b"Origin: null")
        assert reply.status == 200
        assert said(reply) == {b"vary": b"Origin"}


@pytest.mark.parametrize("side", [False, True], ids=["data plane", "taken over"])
async def test_the_router_speaks_in_place_of_the_replica(side) -> None:
    async with fake_replica(OTHERS) as replica, router_over(replica, **ALLOWED) as up, client_of(up.url) as client:
        if side:
            await client.send(ASKS)
            assert (await client.reply()).status == 204
        for _ in range(2):
            await client.send(post(BODY, FROM_PAGE))
            reply = await client.reply()
            assert (reply.status, reply.body, said(reply)) == (200, b"{}", OURS)
        await client.send(post(b"[", FROM_PAGE))
        refused = await client.reply()
        assert (refused.status, said(refused)) == (400, OURS)


@pytest.mark.parametrize("side", [False, True], ids=["data plane", "taken over"])
async def test_a_stream_is_told_too(side) -> None:
    stream = STREAM + chunk(b"data: 1\n\n") + chunk(b"data: [DONE]\n\n") + chunk(b"")
    async with fake_replica(stream) as replica, router_over(replica, **ALLOWED) as up, client_of(up.url) as client:
        if side:
            await client.send(ASKS)
            await client.reply()
        await client.send(post(BODY, FROM_PAGE))
        reply = await client.reply()
        assert said(reply) == OURS
        assert reply.body.endswith(b"0\r\n\r\n")


async def test_models_and_health_are_told_too() -> None:
    async with fake_replica() as replica, router_over(replica, **ALLOWED) as up:
        for path in (b"/v1/models", b"/health", b"/nowhere"):
            reply = await asked(up.url, b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n" + FROM_PAGE + b"\r\n\r\n")
            assert said(reply) == OURS


async def test_any_page_may_be_allowed() -> None:
    async with fake_replica(OTHERS) as replica, router_over(replica, cors__allow_origins="*") as up:
        for fields in ((FROM_PAGE,), (b"Origin: null",), ()):
            reply = await posted(up.url, BODY, *fields)
            assert said(reply) == {b"access-control-allow-origin": b"*", b"access-control-expose-headers": b"*"}


async def test_without_it_the_replica_is_asked_and_what_it_says_passes() -> None:
    async with fake_replica(OTHERS) as replica, router_over(replica) as up:
        told = {b"access-control-allow-origin": b"*", b"access-control-max-age": b"1"}
        for raw in (ASKS, post(BODY, FROM_PAGE)):
            assert said(await asked(up.url, raw)) == told
        assert [seen.line.split()[0] for seen in replica.seen] == [b"OPTIONS", b"POST"]


async def test_an_options_that_no_browser_sent_goes_to_the_replica() -> None:
    async with fake_replica() as replica, router_over(replica, **ALLOWED) as up:
        assert (await asked(up.url, preflight())).status == 200
        assert [seen.line.split()[0] for seen in replica.seen] == [b"OPTIONS"]


@pytest.mark.parametrize(
    "origin",
    ["chat.example.com", "https://chat.example.com/", "https://Chat.example.com", "https://*.example.com", "null"],
)
def test_what_no_browser_writes_is_a_mistake(origin) -> None:
    with pytest.raises(ConfigError, match=r"cors\.allow_origins"):
        load(sets=[f"cors.allow_origins={origin}"])


@pytest.mark.parametrize("origin", ["http://[::1]:3000", "app://desktop", "chrome-extension://abcdef"])
def test_pages_that_are_no_web_sites(origin) -> None:
    assert load(sets=[f"cors.allow_origins={origin}"])[0].cors.allow_origins == (origin,)
