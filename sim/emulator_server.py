"""What the emulator's routes need of the server that holds them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from sim.emulator_events import Telling
from sim.emulator_pages import Origin
from sim.emulator_requests import Limits, Tokenize
from sim.jobs import Job
from sim.live import LiveReplica, Reply


@dataclass(frozen=True, slots=True)
class Work:
    """A job with what its blocks hold: the tokens of prompt and answer, and where their chain begins."""

    job: Job
    tokens: Sequence[int]
    origin: Origin


class Server(Protocol):
    """The emulator, seen from its routes. `stopped` counts answers that ended by themselves."""

    live: LiveReplica
    telling: Telling
    limits: Limits
    tokenize: Tokenize
    detokenize: Callable[[list[int]], str]
    root: str
    started_unix_s: float
    stopped: int

    async def read(self, http: web.Request, *needed: str) -> dict[str, Any]: ...
    def work(
        self, origin: Origin, prompt: Sequence[int], output: Sequence[int], *, reads_cache: bool = True
    ) -> Work: ...
    def running(self, works: Sequence[Work]) -> AbstractContextManager[list[Reply]]: ...
    def answer_id(self, kind: str) -> str: ...
