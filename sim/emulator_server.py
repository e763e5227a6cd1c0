"""What the emulator's routes need of the server that holds them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from sim.emulator_answers import Vocabulary
from sim.emulator_faults import Faults
from sim.emulator_pages import Origin
from sim.emulator_ranks import Rank, Ranks
from sim.emulator_requests import Limits
from sim.jobs import Job
from sim.live import Reply


@dataclass(frozen=True, slots=True)
class Work:
    """A job with what its blocks hold: the tokens of prompt and answer, and where their chain begins."""

    job: Job
    tokens: Sequence[int]
    origin: Origin


class Server(Protocol):
    """The emulator, seen from its routes. `rejected` counts requests refused for the queue."""

    ranks: Ranks
    limits: Limits
    vocabulary: Vocabulary
    faults: Faults
    draining: bool
    detokenize: Callable[[list[int]], str]
    root: str
    started_unix_s: float
    rejected: int

    def tokenize(self, route: str, body: dict[str, Any]) -> list[int]: ...
    async def read(self, http: web.Request, *needed: str) -> dict[str, Any]: ...
    def work(
        self, origin: Origin, prompt: Sequence[int], output: Sequence[int], *, reads_cache: bool = True
    ) -> Work: ...
    def running(self, rank: Rank, works: Sequence[Work]) -> AbstractContextManager[list[Reply]]: ...
    def answer_id(self, kind: str) -> str: ...
    def answer_name(self) -> str: ...
