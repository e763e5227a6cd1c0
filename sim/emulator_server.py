"""What the emulator's routes need of the server that holds them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aiohttp import web

from policies.blocks import Chain
from sim.emulator_requests import Limits, Tokenize
from sim.jobs import Job
from sim.live import LiveReplica


class Server(Protocol):
    """The emulator, seen from its routes. `stopped` counts answers that ended by themselves."""

    live: LiveReplica
    limits: Limits
    tokenize: Tokenize
    detokenize: Callable[[list[int]], str]
    root: str
    started_unix_s: float
    stopped: int

    async def read(self, http: web.Request, *needed: str) -> dict[str, Any]: ...
    def job(self, root: Chain, prompt: Sequence[int], output: Sequence[int], *, reads_cache: bool = True) -> Job: ...
    def answer_id(self, kind: str) -> str: ...
