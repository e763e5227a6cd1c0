"""A router over two replicas that are pushed hard: whenever they rest, its index holds what their caches hold."""

import asyncio
import random
import socket
from contextlib import ExitStack
from typing import Any

import aiohttp
import pytest

from router.app import running
from router.config import load
from router.kv_standing import EXACT
from tests.emulated import COMPLETIONS, LONG, emulated
from tests.fakes import until


def free_pair() -> int:
    """A port that is free like the next one."""
    while True:
        with ExitStack() as stack:
            first, second = (stack.enter_context(socket.socket()) for _ in range(2))
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


class Fleet:
    """The router, its replicas, and a client of many habits."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.settings = [
            {"name": name, "blocks": blocks, "kv_events": free_pair(), "speed": 100.0, "max_num_seqs": 8}
            for name, blocks in (("r1", 40), ("r2", 200))
        ]
        self.replicas: list[Any] = []
        self.up: Any = None
        self.client: Any = None

    async def started(self, place: int) -> None:
        """A new process at a replica's place."""
        port = int(self.replicas[place].url.rpartition(":")[2])
        await self.replicas[place].close()
        self.replicas[place] = await emulated(port=port, **self.settings[place])

    def asked(self) -> tuple[dict[str, Any], float]:
        """A body, and how long its client waits."""
        draw = self.draw
        body: dict[str, Any] = {
            "model": draw.choice(["tiny", "tiny", "sql"]),
            "prompt": f"{draw.randrange(12)} {LONG * draw.choice([1, 2, 4])}",
            "max_tokens": draw.choice([1, 20, 100]),
            "stream": draw.random() < 0.5,
        }
        if draw.random() < 0.2:
            body["cache_salt"] = draw.choice("ab")
        if draw.random() < 0.1:
            body["prompt"] = [[1, 2, 3] * 20, [4, 5] * 30]
        if draw.random() < 0.1:
            body["n"] = 2
        if draw.random() < 0.1:
            body["echo"], body["logprobs"] = True, 1
        return body, draw.choice([0.01, 0.03, 20, 20, 20])

    async def one(self) -> str:
        body, patience_s = self.asked()
        try:
            async with asyncio.timeout(patience_s), self.client.post(COMPLETIONS, json=body) as response:
                await response.read()
                return str(response.status)
        except TimeoutError:
            return "left"

    async def rests(self) -> None:
        """Return when nothing runs and the index equals the caches; fail when it does not come to that."""
        await until(lambda: all(replica.live.live == 0 for replica in self.replicas))
        try:
            await until(lambda: self.believed() == self.held())
        except TimeoutError:
            pytest.fail(f"the index holds {self.believed()} blocks, the caches {self.held()}")

    def believed(self) -> list[int]:
        return [self.up.fleet.held_blocks(name) for name in ("r1", "r2")]

    def held(self) -> list[int]:
        return [replica.engine.cache.cached_keys for replica in self.replicas]

    async def __aenter__(self) -> "Fleet":
        self.replicas = [await emulated(**settings) for settings in self.settings]
        flags = {"listen.port": 0, "admin.port": 0, "tokenizer.where": "replica", "health.interval_s": 0.05}
        flags["replicas"] = ",".join(f"{replica.engine.name}={replica.url}" for replica in self.replicas)
        config, _ = load(flags={name: ("test", value) for name, value in flags.items()})
        self._running = running(config)
        self.up = await self._running.__aenter__()
        await self.up.readers.ready()
        self.client = aiohttp.ClientSession(self.up.url, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._running.__aexit__(None, None, None)
        for replica in self.replicas:
            await replica.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [1, 2])
async def test_at_rest_the_index_holds_what_the_caches_hold(seed: int) -> None:
    """Bursts with clients that leave, salts, adapters, batches, preemptions; a reset, and a new process at a place."""
    async with Fleet(seed) as fleet:
        outcomes: list[str] = []
        for burst in range(6):
            outcomes += await asyncio.gather(*(fleet.one() for _ in range(40)))
            await fleet.rests()
            assert sum(fleet.held()) > 0
            if burst == 1:
                assert all(state.standing.word == EXACT for state in fleet.up.events.states())
            if burst == 2:
                assert fleet.replicas[0].engine.clear_cache()
            if burst == 3:
                await fleet.started(1)
                await fleet.rests()
        assert "200" in outcomes
        assert set(outcomes) <= {"200", "left"}
