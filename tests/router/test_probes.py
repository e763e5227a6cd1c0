"""What an answer to a probe means, in words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from router.probes import ProbeError, answer, model_entries, session

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(path: str, handler: Handler) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get(path, handler)
    async with TestServer(application, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}"


async def test_status_and_body():
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(dict(request.headers), status=418)

    async with serving("/health", handler) as url, session(timeout_s=5, key="k-1") as client:
        status, body = await answer(client, url, "/health")
    assert status == 418
    assert b'"Authorization": "Bearer k-1"' in body
    assert b'"Accept-Encoding": "identity"' in body


async def test_no_key_is_sent_when_there_is_none():
    async def handler(request: web.Request) -> web.Response:
        return web.json_response("Authorization" in request.headers)

    async with serving("/health", handler) as url, session(timeout_s=5, key=None) as client:
        assert await answer(client, url, "/health") == (200, b"false")


async def test_a_refused_connection():
    async with session(timeout_s=5, key=None) as client:
        with pytest.raises(ProbeError, match=r"^refused the connection$"):
            await answer(client, f"http://127.0.0.1:{unused_port()}", "/health")


async def test_a_name_that_does_not_exist():
    async with session(timeout_s=5, key=None) as client:
        with pytest.raises(ProbeError, match=r"^could not be connected to"):
            await answer(client, "http://replica.invalid:1", "/health")


async def test_no_answer_in_time():
    left = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await left.wait()
        return web.Response()

    async with serving("/health", handler) as url, session(timeout_s=0.05, key=None) as client:
        with pytest.raises(ProbeError, match=r"did not answer /health within 0\.05 s"):
            await answer(client, url, "/health")
        left.set()


async def test_something_that_speaks_no_http():
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server, session(timeout_s=5, key=None) as client:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProbeError, match="gave no HTTP answer to /health"):
            await answer(client, f"http://127.0.0.1:{port}", "/health")


async def test_an_endless_answer_is_cut():
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(40):
            await response.write(b"x" * 1024 * 1024)
        return response

    async with serving("/metrics", handler) as url, session(timeout_s=20, key=None) as client:
        with pytest.raises(ProbeError, match="sent more than"):
            await answer(client, url, "/metrics")


async def test_only_metrics_may_redirect():
    async def handler(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(request.path + "/")

    async with serving("/{path}", handler) as url, session(timeout_s=5, key=None) as client:
        assert (await answer(client, url, "/health"))[0] == 307
        assert (await answer(client, url, "/metrics"))[0] == 404


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"data": [{"id": "a", "root": "/m"}, {"no": 1}, {"id": 3}]}', ["a"]),
        (b'{"data": []}', []),
        (b"", None),
        (b"not json", None),
        (b"[]", None),
        (b'{"data": 3}', None),
        (b'{"data": ["a"]}', None),
    ],
)
def test_model_entries(body, ids):
    found = model_entries(body)
    assert (found and [entry["id"] for entry in found]) == ids


async def test_a_question_on_a_connection_that_was_dropped_is_asked_again_and_is_no_failure():
    """A replica that drops every second request of a connection sees one more than were asked."""
    arrivals = []

    async def handler(request: web.Request) -> web.Response:
        arrivals.append(request.transport)
        if arrivals.count(request.transport) == 2:
            request.transport.abort()
        return web.Response(text="up")

    async with serving("/health", handler) as url, session(timeout_s=5, key=None) as client:
        assert [await answer(client, url, "/health") for _ in range(3)] == [(200, b"up")] * 3
    assert len(arrivals) == 5
