"""One replica on the wall clock: a single task steps the pure engine and tells the waiting requests what they got.

The one rule: a token is given when its step is over, at the profile's pace times `speed`. Steps shorter than a
millisecond are folded into one wake-up, so a fast replica costs no timer per token; an idle one costs nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from sim.emulator_latency import FIRST_TOKEN_S, REQUEST_S, Histogram
from sim.errors import EngineDied
from sim.jobs import Job, JobId
from sim.replica import SimReplica

_log = logging.getLogger(__name__)

_FOLD_S = 0.001
_MAX_LAG_S = 0.1  # a process that cannot keep the pace becomes slower, it does not catch up in a burst


class Reply:
    """What one job has given so far. Several replies may ring the same bell."""

    __slots__ = ("began_s", "bell", "cached_tokens", "done", "job", "lost", "made")

    def __init__(self, job: Job, bell: asyncio.Event, began_s: float) -> None:
        self.began_s = began_s
        self.job = job
        self.bell = bell
        self.made = 0
        self.done = False
        self.lost = False
        self.cached_tokens = 0


class LiveReplica:
    """Runs jobs in real time. Use `start` and `close` inside one event loop.

    `stepped` is called at the end of every step, before anybody gets its tokens.
    """

    def __init__(self, engine: SimReplica, speed: float, stepped: Callable[[], None] = lambda: None) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be more than 0, not {speed}")
        self.engine = engine
        self._speed = speed
        self._stepped = stepped
        self.first_token_s = Histogram(FIRST_TOKEN_S)
        self.request_s = Histogram(REQUEST_S)
        self._replies: dict[JobId, Reply] = {}
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"engine of {self.engine.name}")
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def failed(self) -> bool:
        """The engine stepped into a fault of its own: nothing is answered any more."""
        return self._task is not None and self._task.done()

    @property
    def live(self) -> int:
        """Jobs submitted and neither finished nor aborted."""
        return len(self._replies)

    def submit(self, jobs: Sequence[Job]) -> list[Reply]:
        """Start jobs whose replies ring one bell."""
        if self.failed:
            raise EngineDied(f"the engine of {self.engine.name} is dead: start the replica anew")
        bell = asyncio.Event()
        now_s = asyncio.get_running_loop().time()
        replies = [Reply(job, bell, now_s) for job in jobs]
        for reply in replies:
            self.engine.submit(reply.job)
            self._replies[reply.job.id] = reply
        self._work.set()
        return replies

    def abort(self, replies: Sequence[Reply]) -> None:
        """Give up what is not done yet."""
        for reply in replies:
            if self._replies.pop(reply.job.id, None) is not None:
                self.engine.abort(reply.job.id)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Tell those who wait that nothing will come."""
        for reply in self._replies.values():
            reply.lost = True
            reply.bell.set()
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("the engine of %s died", self.engine.name, exc_info=fault)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if self.engine.idle:
                self._work.clear()
                await self._work.wait()
                due = clock()
            due = max(due, clock() - _MAX_LAG_S)
            due = self._fold(due, clock() + _FOLD_S)
            await asyncio.sleep(max(0.0, due - clock()))
            self._finish()

    def _fold(self, due: float, until: float) -> float:
        """Run steps that end before `until`, begin the one that ends after it, and return that end."""
        for _ in range(64):
            step = self.engine.step()
            if step is None:
                return due
            for job_id, cached in step.admitted.items():
                self._replies[job_id].cached_tokens = cached
            due += step.duration_s / self._speed
            if due > until:
                return due
            self._finish()
        return due

    def _finish(self) -> None:
        """End the step in flight, if any, and ring for those it gave a token."""
        tokens = self.engine.finish_step()
        self._stepped()
        now_s = asyncio.get_running_loop().time()
        for job_id in tokens.first:
            self.first_token_s.observed(now_s - self._replies[job_id].began_s)
        for job_id in tokens.made:
            reply = self._replies[job_id]
            reply.made += 1
            reply.bell.set()
        for job_id in tokens.finished:
            reply = self._replies.pop(job_id)
            reply.done = True
            self.request_s.observed(now_s - reply.began_s)


async def finished(replies: Sequence[Reply]) -> None:
    """Wait until every one of these, submitted together, is done."""
    while not all(reply.done for reply in replies):
        await more(replies)


async def more(replies: Sequence[Reply]) -> None:
    """Wait until one of these, submitted together, has got something new."""
    bell = replies[0].bell
    await bell.wait()
    bell.clear()
    if any(reply.lost for reply in replies):
        raise EngineDied("the engine died before the answer was done")
