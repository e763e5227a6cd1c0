"""`router explain`, with a router to ask and without."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from router.errors import RouterError, UsageError
from router.explain import explain, offline
from router.readers import TINY

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "What is a prefix cache? " * 20}]}


@pytest.fixture
def body(tmp_path):
    path = tmp_path / "body.json"
    path.write_text(json.dumps(BODY), "utf-8")
    return str(path)


@asynccontextmanager
async def answering(answer: object, status: int = 200) -> AsyncIterator[tuple[str, list[tuple[str, str, bytes]]]]:
    asked = []

    async def explained(request: web.Request) -> web.Response:
        asked.append((request.path, request.query["path"], await request.read()))
        return web.json_response(answer, status=status)

    application = web.Application()
    application.router.add_post("/explain", explained)
    async with TestServer(application, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}/", asked


async def test_a_router_is_asked_with_the_very_bytes_of_the_file(body):
    async with answering({"choice": {"replica": "r1"}}) as (url, asked):
        told = await asyncio.to_thread(explain, body, "/v1/messages", url)
    assert told == {"choice": {"replica": "r1"}}
    assert asked == [("/explain", "/v1/messages", json.dumps(BODY).encode())]


async def test_a_refusal_is_passed_on(body):
    error = {"error": {"message": "no replica serves 'tiny'; served: other"}}
    async with answering(error, 404) as (url, _):
        with pytest.raises(RouterError, match="no replica serves 'tiny'; served: other"):
            await asyncio.to_thread(explain, body, "/v1/messages", url)


async def test_something_else_answers(body):
    async with answering(["hello"]) as (url, _):
        with pytest.raises(RouterError, match="is it a router's admin address"):
            await asyncio.to_thread(explain, body, "/v1/messages", url)


def test_nobody_answers(body):
    with pytest.raises(RouterError, match=r"no router answers at .*start one with `router serve`"):
        explain(body, "/v1/messages", f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(UsageError, match="is no http:// address"):
        explain(body, "/v1/messages", "127.0.0.1:9090")


def test_offline_tells_tokens_and_blocks(body):
    told = offline(body, "/v1/chat/completions", TINY, 16)
    assert told["tokens"]["basis"] == "exact"
    assert told["blocks"]["count"] == (told["tokens"]["prompt"] - 1) // 16 == len(told["blocks"]["keys"])
    assert told["model"] == "tiny"


@pytest.mark.parametrize(("text", "told"), [("{", "is not JSON"), ("[]", "holds a list")])
def test_bodies_that_are_none(tmp_path, text, told):
    path = tmp_path / "body.json"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=told):
        offline(str(path), "/v1/chat/completions", TINY, 16)


def test_a_tokenizer_that_is_none(body, tmp_path):
    with pytest.raises(UsageError, match=r"--tokenizer .*tokenizer.json"):
        offline(body, "/v1/chat/completions", tmp_path, 16)
