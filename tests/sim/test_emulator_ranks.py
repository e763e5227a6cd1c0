"""Two engines behind one port, as a vLLM server with data-parallel ranks shows them."""

from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from router.engine_metrics import parse
from router.kv_sources import told
from sim.emulator import Emulator
from tests.emulated import ASKED, COMPLETIONS, LONG, cached, emulated, post

HELD = len(LONG) // 16 * 16
RANK = "X-data-parallel-rank"


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    running = await emulated(ranks=2, kv_events=0)
    yield running
    await running.close()


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(emulator.url) as session:
        yield session


async def asked(client: aiohttp.ClientSession, rank: str | None) -> int:
    headers = {} if rank is None else {RANK: rank}
    async with client.post(COMPLETIONS, json=ASKED[COMPLETIONS], headers=headers) as response:
        assert response.status == 200
        return cached(await response.json())


async def test_without_a_rank_equal_prompts_alternate(client: aiohttp.ClientSession) -> None:
    assert [await asked(client, None) for _ in range(4)] == [0, 0, HELD, HELD]


async def test_a_rank_keeps_to_its_own_cache(client: aiohttp.ClientSession) -> None:
    assert [await asked(client, rank) for rank in ("1", "1", "0", "1", "0", "what")] == [0, HELD, 0, HELD, HELD, HELD]
    async with client.post(COMPLETIONS, json=ASKED[COMPLETIONS], headers={RANK: "2"}) as response:
        assert response.status == 400
        assert "data_parallel_rank 2 is out of range [0, 2)." in await response.text()


async def test_pooling_goes_to_a_rank_too(client: aiohttp.ClientSession, emulator: Emulator) -> None:
    async with client.post("/v1/embeddings", json={"input": LONG}, headers={RANK: "1"}) as response:
        assert response.status == 200
    assert [rank.live.engine.counters.finished for rank in emulator.ranks] == [0, 1]


async def test_metrics_are_told_apart_by_their_engine(client: aiohttp.ClientSession) -> None:
    for rank in ("0", "1", "1", "1"):
        await asked(client, rank)
    async with client.get("/metrics") as response:
        text = await response.text()
    both, first, second = parse(text), parse(text, 0), parse(text, 1)
    assert (both.engines, first.engines, second.engines) == (2, 1, 1)
    assert first.capacity_blocks == second.capacity_blocks == 400 == (both.capacity_blocks or 0) // 2
    assert (first.hit_tokens_total, second.hit_tokens_total) == (0, 2 * HELD)
    assert both.queried_tokens_total == 4 * len(LONG)
    assert text.count("# TYPE vllm:prefix_cache_hits_total") == 1


async def test_each_rank_publishes_by_itself(client: aiohttp.ClientSession, emulator: Emulator) -> None:
    async with client.get("/kv_event_sources") as response:
        sources = told(await response.read(), emulator.url)
    assert [source.rank for source in sources] == [0, 1]
    assert len({source.endpoint for source in sources} | {source.replay for source in sources}) == 4
    await asked(client, "1")
    context = zmq.asyncio.Context()
    try:
        counts = []
        for source in sources:
            dealer = context.socket(zmq.DEALER)
            dealer.connect(source.replay or "")
            await dealer.send_multipart((b"", bytes(8)))
            ranks = []
            while (frames := await dealer.recv_multipart())[2] != b"\xff" * 8:
                ranks.append(msgspec.msgpack.decode(frames[3])[2])
            counts.append(set(ranks))
        assert counts == [set(), {1}]
    finally:
        context.destroy(linger=0)


async def test_a_reset_empties_all_ranks(client: aiohttp.ClientSession) -> None:
    for rank in ("0", "1"):
        await asked(client, rank)
    assert await post(client, "/reset_prefix_cache", {}) == {"success": True}
    assert [await asked(client, rank) for rank in ("0", "1")] == [0, 0]


async def test_ports_are_one_behind_the_other(client: aiohttp.ClientSession) -> None:
    base = free_ports(4)
    given = await emulated(ranks=2, kv_events=base)
    try:
        endpoints = [
            (source["endpoint"], source["replay_endpoint"]) for rank in given.ranks if (source := rank.telling.source())
        ]
        assert endpoints == [(f"tcp://*:{base + rank}", f"tcp://*:{base + 2 + rank}") for rank in range(2)]
    finally:
        await given.close()


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free."""
    import socket
    from contextlib import ExitStack

    while True:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            sockets[0].bind(("127.0.0.1", 0))
            first = int(sockets[0].getsockname()[1])
            try:
                for at, one in enumerate(sockets[1:], 1):
                    one.bind(("127.0.0.1", first + at))
            except (OSError, OverflowError):
                continue
            return first
