"""The open-loop load driver: every request is sent when it is due, whatever became of those before it.

The one rule: times count from when a request was due, not from when it got out, so that a driver or a guard that falls
behind shows in the latencies and in the count of late sends instead of quietly waiting for the server. Not here: what
is asked and when (`groups`, `phases`), and what the times come to (`results`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from router.bench.replies import Reply
from router.usage import UNKNOWN, Usage

LATE_S = 0.05
"""A request that got out more than this after it was due was late: far above what a healthy event loop needs."""
_LEAD_S = 0.1
_KEPT_S = 3.0
"""An idle connection is let go before the server does (uvicorn: after 5 s), or a request would meet a closed one."""
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send. `due_s` counts from the start of the run."""

    due_s: float
    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request. Times are seconds since the run's start; None is unknown."""

    number: int
    due_s: float
    sent_s: float
    first_s: float | None
    end_s: float
    error: str
    """What went wrong, a short constant word or `http` and the status; empty for a good answer."""
    usage: Usage = UNKNOWN

    @property
    def is_late(self) -> bool:
        return self.sent_s - self.due_s > LATE_S

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.due_s

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first; None where the server does not say how many there were."""
        tokens = self.usage.output_tokens
        if self.first_s is None or tokens is None or tokens < 2:
            return None
        return (self.end_s - self.first_s) / (tokens - 1)


async def driven(
    client: aiohttp.ClientSession,
    url: str,
    asks: Iterable[Ask],
    told: Callable[[Answer], None],
    *,
    in_flight: int | None = None,
) -> None:
    """Send all of them and return when the last has ended; `told` hears of each as it ends.

    With `in_flight`, so many at most are under way: those beyond wait, and are late. `asks` is gone through while it is
    sent, in the order of `due_s`. Cancelled, it gives up what is under way, of which `told` does not hear.
    """
    began_s = time.monotonic() + _LEAD_S
    gate = asyncio.Semaphore(in_flight) if in_flight is not None else None
    async with asyncio.TaskGroup() as tasks:
        for number, ask in enumerate(asks):
            await asyncio.sleep(max(0.0, began_s + ask.due_s - time.monotonic()))
            if gate is not None:
                await gate.acquire()
            task = tasks.create_task(_sent(client, url, number, ask, began_s, told))
            if gate is not None:
                task.add_done_callback(lambda _: gate.release())


@asynccontextmanager
async def connected(headers: Mapping[str, str], timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """A client without limits of its own; `headers` go with every request, `timeout_s` is for each as a whole."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"User-Agent": "prefix-router", "Accept-Encoding": "identity", **headers},
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as client:
        yield client


async def _sent(
    client: aiohttp.ClientSession, url: str, number: int, ask: Ask, began_s: float, told: Callable[[Answer], None]
) -> None:
    sent_s = time.monotonic()
    first_s: float | None = None
    usage = UNKNOWN
    try:
        headers = {**_JSON, **ask.headers}
        async with client.post(url + ask.path, data=ask.body, headers=headers, allow_redirects=False) as answer:
            reply = Reply(streamed=answer.content_type == "text/event-stream")
            async for part in answer.content.iter_any():
                reply.fed(part)
                if first_s is None and reply.begun:
                    first_s = time.monotonic()
            error = reply.fault if answer.status == 200 else f"http {answer.status}"
            usage = reply.usage
    except TimeoutError:
        error = "timeout"
    except aiohttp.ClientConnectorError:
        error = "not connected"
    except (aiohttp.ClientError, OSError):
        error = "cut"
    end_s = time.monotonic()
    first_s = None if first_s is None else first_s - began_s
    told(Answer(number, ask.due_s, sent_s - began_s, first_s, end_s - began_s, error, usage))
