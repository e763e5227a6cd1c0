"""Faults that can be switched on, and only where they were asked for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from sim.emulator_faults import Fault, Faults
from sim.emulator_refusals import Refusal
from tests.emulated import ASKED, CHAT, COMPLETIONS, emulated, post, until


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    running = await emulated(faults=Faults())
    async with aiohttp.ClientSession(running.url) as session:
        yield session
    await running.close()


async def switch(client: aiohttp.ClientSession, **fault: Any) -> None:
    told = await post(client, "/faults", fault)
    assert told.items() >= fault.items()


async def met(client: aiohttp.ClientSession) -> int:
    async with client.get("/faults") as response:
        return int((await response.json())["met"])


async def test_every_second_request_fails_until_it_is_switched_off(client: aiohttp.ClientSession) -> None:
    await switch(client, kind="error", status=502, every=2)
    for status in (200, 502, 200, 502):
        await post(client, COMPLETIONS, ASKED[COMPLETIONS], status)
    assert await met(client) == 2
    await switch(client, kind="none")
    await post(client, COMPLETIONS, ASKED[COMPLETIONS])
    await post(client, COMPLETIONS, ASKED[COMPLETIONS])


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_is_cut(client: aiohttp.ClientSession, streamed: bool) -> None:
    await switch(client, kind="cut", tokens=2)
    body = ASKED[CHAT] | {"max_tokens": 1500, "stream": streamed}
    if not streamed:
        body["max_tokens"] = 5
    seen = b""

    async def read() -> None:
        nonlocal seen
        async with client.post(CHAT, json=body) as response:
            async for piece in response.content.iter_any():
                seen += piece

    with pytest.raises(aiohttp.ClientError):
        await read()
    assert (b"data: " in seen) == streamed
    assert b"[DONE]" not in seen


async def test_a_request_hangs_until_its_client_leaves() -> None:
    emulator = await emulated(faults=Faults())
    try:
        async with aiohttp.ClientSession(emulator.url) as client:
            await switch(client, kind="hang")
            call = asyncio.create_task(client.post(CHAT, json=ASKED[CHAT]).__aenter__())
            await until(lambda: emulator.faults.met == 1)
            assert emulator.live.live == 0
            call.cancel()
            await switch(client, kind="slow", seconds=0)
            await post(client, CHAT, ASKED[CHAT])
            assert await met(client) == 1
    finally:
        await emulator.close()


async def test_a_server_without_faults_has_no_such_route() -> None:
    emulator = await emulated()
    try:
        async with aiohttp.ClientSession(emulator.url) as client:
            await post(client, "/faults", {"kind": "error"}, 404)
            await post(client, CHAT, ASKED[CHAT])
    finally:
        await emulator.close()


@pytest.mark.parametrize(
    "body",
    [{"kind": "fire"}, {"what": 1}, {"every": 0}, {"every": "2"}, {"status": 200}, {"seconds": -1.0}, {"tokens": 1.5}],
)
def test_a_fault_that_is_none_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        Fault.read(body)
