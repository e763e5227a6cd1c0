"""`router explain`, with a router to ask and without."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from policies.plugins import installed
from policies.types import Replica, Request
from router.errors import RouterError, UsageError
from router.explain import explain, offline
from router.readers import TINY
from tests.fakes import IDLE, client_of, fake_replica, load_of, posted, router_over, until

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


async def forecast(up, body: bytes) -> tuple[int, dict]:
    reply = await posted(up.admin_url, body, path=b"/explain?path=/v1/completions")
    return reply.status, reply.json


@pytest.mark.parametrize("name", [one.name for one in installed() if one.distribution == "prefix-router"])
async def test_a_dry_run_says_what_happens_next_and_changes_none_of_it(name):
    """Asked once, twice, and then in earnest: dice, turns and windows of a policy are where they were."""
    async with fake_replica() as one, fake_replica() as two, fake_replica() as three:
        replicas = {"r1": one, "r2": two, "r3": three}
        async with router_over(one, two, three, policy__name=name) as up:
            for number in range(12):
                body = json.dumps({"model": "m", "prompt": f"{number} " * 40, "user": f"u{number % 5}"}).encode()
                forecasts = [(await forecast(up, body))[1]["choice"]["replica"] for _ in range(2)]
                before = {name: len(replica.seen) for name, replica in replicas.items()}
                assert (await posted(up.url, body)).status == 200
                (went,) = [name for name, replica in replicas.items() if len(replica.seen) > before[name]]
                assert forecasts == [went, went]
                await until(lambda: load_of(up) == IDLE)


class Failing:
    def choose(self, request: Request, replicas: tuple[Replica, ...]) -> str:
        raise ValueError("no")


class Locked:
    """Holds what can't be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = 0

    def choose(self, request: Request, replicas: tuple[Replica, ...]) -> str:
        self.asked += 1
        return replicas[0].name


async def test_a_dry_run_of_a_policy_that_fails_is_no_failure_of_it(monkeypatch):
    async with fake_replica() as one, fake_replica() as two, router_over(one, two) as up:
        monkeypatch.setattr("policies.round_robin.RoundRobin.choose", Failing.choose)
        for _ in range(3):
            _, told = await forecast(up, b'{"model":"m","prompt":"hi"}')
            assert told["choice"]["reason"] == "policy-failed"
        async with client_of(up.admin_url) as client:
            await client.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"\nrouter_policy_failures_total 0.0\n" in (await client.reply()).body


async def test_a_policy_that_cannot_be_copied_is_not_asked():
    policy = f"{Locked.__module__}:Locked"
    async with fake_replica() as one, router_over(one, policy__name=policy) as up:
        status, told = await forecast(up, b'{"model":"m","prompt":"hi"}')
    assert status == 501
    assert "can't be copied (TypeError)" in told["error"]["message"]
