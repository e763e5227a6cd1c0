"""What a router remembers of what it sent predicts what replicas deliver: while events are late, and without any.

Without, also when a replica's size is told wrong.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio

from router.app import running
from router.config import load
from router.kv_standing import EXACT
from router.outcome import Outcome
from sim.emulator import Emulator
from tests.emulated import COMPLETIONS, emulated
from tests.fakes import until

BLOCKS = 240
WORDS = ("prefix", "cache", "block", "prompt", "router", "replica", "engine", "token", "batch", "queue", "model")


def prompt(draw: random.Random, chats: list[str]) -> str:
    """A chat goes on, or a new one begins; long ones end."""
    place = min(int(draw.paretovariate(0.8)) - 1, len(chats) - 1)
    if len(chats[place]) > 900:
        chats[place] = f"{draw.random()} "
    chats[place] += " ".join(draw.choices(WORDS, k=12))
    return chats[place]


async def outcomes(
    requests: int,
    *,
    told_blocks: int | None = None,
    max_tokens: int = 1,
    own_tokens: int = 16,
    answers: tuple[int, ...] = (1,),
) -> tuple[list[Outcome], list[int]]:
    """How sequential requests went, and the capacity that was fitted for each replica."""
    draw, seen = random.Random(5), []
    chats = [f"chat {number} " for number in range(16)]
    replicas = [
        await emulated(name=name, blocks=BLOCKS, block_tokens=own_tokens, speed=1000.0) for name in ("r1", "r2")
    ]
    flags: dict[str, Any] = {"listen.port": 0, "admin.port": 0, "tokenizer.where": "replica", "kv_events": "off"}
    flags["replicas"] = [{"url": replica.url, "capacity_blocks": told_blocks} for replica in replicas]
    config, _ = load(flags={name: ("test", value) for name, value in flags.items()})
    async with running(config) as up, aiohttp.ClientSession(up.url) as client:
        await up.readers.ready()
        up.gateway._accounts.ears.append(lambda _, outcome: seen.append(outcome))
        for number in range(requests):
            body = {"model": "tiny", "prompt": prompt(draw, chats), "max_tokens": max_tokens}
            body["n"] = answers[number % len(answers)]
            async with client.post(COMPLETIONS, json=body) as response:
                assert response.status == 200
                await response.read()
        fitted = [up.fleet.effective_blocks(name) for name in up.fleet.replicas()]
    for replica in replicas:
        await replica.close()
    assert None not in fitted
    return seen, [size for size in fitted if size is not None]


def right_fraction(seen: list[Outcome]) -> float:
    return sum(one.predicted_tokens == one.delivered_tokens for one in seen) / len(seen)


async def test_what_is_predicted_is_delivered() -> None:
    seen, fitted = await outcomes(400)
    assert sum(one.predicted_tokens for one in seen) > 0.3 * sum(one.prompt_tokens for one in seen)
    assert right_fraction(seen) >= 0.95
    assert all(0.8 * BLOCKS < size < 1.25 * BLOCKS for size in fitted)


@pytest.mark.parametrize("own_tokens", [16, 32])
async def test_answers_that_nobody_can_name_take_room(own_tokens: int) -> None:
    seen, _ = await outcomes(400, max_tokens=40, own_tokens=own_tokens)
    assert right_fraction(seen) >= 0.99


async def test_several_answers_to_one_prompt_take_room_each() -> None:
    """Their own look-ups are not told apart, so they are not compared; what they push out of the cache is known."""
    seen, _ = await outcomes(400, max_tokens=40, answers=(1, 4))
    compared = [one for one in seen if one.delivered_tokens is not None]
    assert len(compared) == 200
    assert right_fraction(compared) >= 0.98


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("told_blocks", "least", "most"), [(BLOCKS // 2, 0.6, 1.3), (BLOCKS * 3, 0.8, 1.9)])
async def test_a_size_that_is_told_wrong_is_found_out(told_blocks: int, least: float, most: float) -> None:
    seen, fitted = await outcomes(1200, told_blocks=told_blocks)
    assert right_fraction(seen[-200:]) >= 0.9
    assert all(least * BLOCKS < size < most * BLOCKS for size in fitted)


@asynccontextmanager
async def late(replica: Emulator, by_s: float) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    """Where the replica's events can be heard so much later, and what ends once somebody listens there.

    A publisher drops what it sends before a subscription reached it, so nothing may be asked before that.
    """
    loop, context = asyncio.get_running_loop(), zmq.asyncio.Context()
    here, there = context.socket(zmq.SUB), context.socket(zmq.XPUB)
    here.subscribe(b"")
    source = replica.telling.source()
    assert source is not None
    linked = here.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    here.connect(source["endpoint"].replace("*", "127.0.0.1"))
    await linked.recv_multipart()
    here.disable_monitor()
    linked.close(linger=0)
    endpoint = f"tcp://127.0.0.1:{there.bind_to_random_port('tcp://127.0.0.1')}"
    sending: zmq.Socket[bytes] = zmq.Socket.shadow(there)

    def passed_on(batch: list[bytes]) -> None:
        if not there.closed:
            sending.send_multipart(batch)

    async def subscribed() -> None:
        assert await there.recv() == b"\x01"

    async def heard() -> None:
        while True:
            loop.call_later(by_s, passed_on, await here.recv_multipart())

    listened, task = asyncio.create_task(subscribed()), asyncio.create_task(heard())
    yield endpoint, listened
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    here.close(linger=0)
    there.close(linger=0)
    context.term()


async def test_what_is_predicted_is_delivered_though_events_come_late() -> None:
    """Small caches: what a prompt pushes out is told after the next one is placed, like what it brought."""
    draw, seen = random.Random(1), []
    chats = [f"chat {number} " for number in range(16)]
    names = ("r1", "r2")
    replicas = [await emulated(name=name, blocks=BLOCKS, speed=1000.0, kv_events=0) for name in names]
    flags: dict[str, Any] = {"listen.port": 0, "admin.port": 0, "tokenizer.where": "replica"}
    async with AsyncExitStack() as stack:
        heard = [await stack.enter_async_context(late(replica, 0.02)) for replica in replicas]
        flags["replicas"] = [
            {"name": name, "url": replica.url, "kv_events": endpoint}
            for name, replica, (endpoint, _) in zip(names, replicas, heard, strict=True)
        ]
        config, _ = load(flags={name: ("test", value) for name, value in flags.items()})
        up = await stack.enter_async_context(running(config))
        client = await stack.enter_async_context(aiohttp.ClientSession(up.url))
        await up.readers.ready()
        await asyncio.wait_for(asyncio.gather(*(listened for _, listened in heard)), 20.0)
        for number, replica in enumerate(replicas):  # until its first event, nobody knows that a replica will tell
            first = {"model": "tiny", "prompt": f"{number} first " * 8, "max_tokens": 1}
            async with client.post(f"{replica.url}{COMPLETIONS}", json=first) as response:
                assert response.status == 200
        await until(lambda: all(up.fleet.tells(name) for name in names))
        up.gateway._accounts.ears.append(lambda _, outcome: seen.append(outcome))
        for _ in range(900):
            body = {"model": "tiny", "prompt": prompt(draw, chats), "max_tokens": draw.choice([1, 2, 9, 40])}
            async with client.post(COMPLETIONS, json=body) as response:
                assert response.status == 200
                await response.read()
        assert [(state.standing.word, state.standing.degraded) for state in up.events.states()] == [(EXACT, "")] * 2
    for replica in replicas:
        await replica.close()
    assert sum(one.delivered_tokens or 0 for one in seen) > 0.3 * sum(one.prompt_tokens for one in seen)
    assert right_fraction(seen) >= 0.99
