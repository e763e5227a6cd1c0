"""A router before the engines, a client of it, and what the router said of each request.

The one rule: what is compared is what the router itself predicted and passed on, request by request. Not here: what
clients ask (`traffic`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from router.app import Running, running
from router.config import Config, load
from router.engine_metrics import EngineMetrics, parse
from tests.fakes import until
from tests.real_vllm.engines import Engine, Engines
from tests.real_vllm.listener import Listener

PATIENCE_S = 20.0


@dataclass(slots=True)
class Routed:
    """All that a test looks at."""

    up: Running
    config: Config
    client: aiohttp.ClientSession
    engines: Engines
    listeners: dict[str, Listener]
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    """The fields of the router's line for each request that has ended."""

    async def post(self, route: str, body: dict[str, Any]) -> tuple[int, bytes]:
        async with self.client.post(route, json=body) as response:
            return response.status, await response.read()

    async def engine(self, engine: Engine) -> EngineMetrics:
        async with self.client.get(f"{engine.url}/metrics") as response:
            return parse(await response.text())

    async def rest(self, *engines: Engine) -> None:
        """Return when nothing runs in these engines, or in any."""
        for engine in engines or self.engines.all:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    told = await self.engine(engine)
                    if told.running == told.waiting == 0:
                        break
                    await asyncio.sleep(0.02)

    def differences(self, *engines: Engine) -> dict[str, tuple[int, int]]:
        """By replica whose index is not the set of blocks its events imply: how many are missing, how many too many."""
        found = {}
        for engine in engines or self.engines.all:
            wanted = self.listeners[engine.name].keys(self.up.fleet.block_tokens)
            copies = self.up.fleet._index.copies(engine.name)
            missing = sum(key not in copies for key in wanted) if copies is not None else len(wanted)
            held = len(copies) if copies is not None else 0
            if missing or held != len(wanted):
                found[engine.name] = (missing, held - len(wanted) + missing)
        return found

    async def quiet(self, *engines: Engine) -> None:
        """Wait until nothing runs; then the index must come to equal what the events imply."""
        await self.rest(*engines)
        try:
            await until(lambda: not self.differences(*engines))
        except TimeoutError:
            raise AssertionError(f"the index differs (missing, too many): {self.differences(*engines)}") from None


class _Outcomes(logging.Handler):
    def __init__(self, outcomes: list[dict[str, Any]]) -> None:
        super().__init__()
        self._outcomes = outcomes

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "router_fields", {})
        self._outcomes.append({"outcome": record.getMessage(), "delivered_tokens": None, **fields})


@asynccontextmanager
async def routed(engines: Engines, listeners: dict[str, Listener], **settings: Any) -> AsyncIterator[Routed]:
    """A router that has read the model's tokenizer and the engines' events so far."""
    flags: dict[str, Any] = {"listen.port": 0, "admin.port": 0, "log.requests": True}
    flags["replicas"] = ",".join(f"{engine.name}={engine.url}" for engine in engines.all)
    config, _ = load(flags={name: ("test", value) for name, value in (flags | settings).items()})
    async with running(config) as up, aiohttp.ClientSession(up.url) as client:
        await up.readers.ready()
        await until(lambda: all(state.settled for state in up.events.states()), PATIENCE_S)
        found = Routed(up, config, client, engines, listeners)
        logger, handler = logging.getLogger("router.requests"), _Outcomes(found.outcomes)
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        with closing(handler):
            yield found
        logger.removeHandler(handler)
        logger.setLevel(level)
