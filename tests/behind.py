"""A router before emulated replicas, and what it says of each request that has ended."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from router.app import Running, running
from router.config import load
from sim.emulator import Emulator
from tests.emulated import COMPLETIONS
from tests.fakes import until


@dataclass(slots=True)
class Behind:
    """The router that is up, and its client."""

    up: Running
    client: aiohttp.ClientSession
    said: list[dict[str, Any]] = field(default_factory=list)
    """The fields of the router's line for each request that has ended."""

    async def completed(self, prompt: Any, model: str = "tiny", **more: Any) -> dict[str, Any]:
        """What the router says of one completion that went well."""
        body = {"model": model, "prompt": prompt, "max_tokens": 1, **more}
        async with self.client.post(COMPLETIONS, json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()
        return self.said[-1]

    async def found(self, prompt: Any, model: str = "tiny", **more: Any) -> tuple[int, int]:
        """Predicted and delivered tokens of one completion."""
        said = await self.completed(prompt, model, **more)
        return said["predicted_tokens"], said["delivered_tokens"]


class _Said(logging.Handler):
    def __init__(self, said: list[dict[str, Any]]) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(getattr(record, "router_fields", {}))


@contextmanager
def listening(said: list[dict[str, Any]]):
    logger, handler = logging.getLogger("router.requests"), _Said(said)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@asynccontextmanager
async def behind(emulators: Sequence[Emulator], **settings: Any) -> AsyncIterator[Behind]:
    """A router that knows its replicas' prompts and has read their events so far."""
    flags: dict[str, Any] = {"listen.port": 0, "admin.port": 0, "log.requests": True, "tokenizer.where": "replica"}
    flags["replicas"] = ",".join(f"{emulator.engine.name}={emulator.url}" for emulator in emulators)
    flags |= {"health.interval_s": 0.02}
    config, _ = load(flags={name: ("test", value) for name, value in (flags | settings).items()})
    async with running(config) as up, aiohttp.ClientSession(up.url) as client:
        await up.readers.ready()
        await until(lambda: all(state.settled for state in up.events.states()))
        found = Behind(up, client)
        with listening(found.said):
            yield found
