"""Counts how often the event loop stalls: a timer that measures how late it is.

The one rule: everything of the router runs on one loop, so whatever holds it holds everybody; what is counted here is
a fault, whatever caused it. Not here: finding the cause (`PYTHONASYNCIODEBUG=1` names slow callbacks).
"""

import asyncio
from collections.abc import Iterator

from router.families import Built, counter, gauge

STALL_S = 0.05
"""A loop that is held longer than this is a stall."""

_PERIOD_S = 0.02


class Stalls:
    """Watches the running loop, inside `async with`."""

    __slots__ = ("_due_s", "_loop", "_timer", "count", "longest_s")

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Stalls {self.count}, longest {self.longest_s:.3f} s>"

    async def __aenter__(self) -> "Stalls":
        self._loop = asyncio.get_running_loop()
        self._wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def woken(self, now_s: float) -> None:
        """The timer rang at `now_s`."""
        late_s = now_s - self._due_s
        if late_s > STALL_S:
            self.count += 1
        self.longest_s = max(self.longest_s, late_s)

    def collect(self) -> Iterator[Built]:
        yield counter("router_loop_stalls_total", [((), self.count)])
        yield gauge("router_loop_longest_stall_seconds", [((), self.longest_s)])

    def _wait(self) -> None:
        self._due_s = self._loop.time() + _PERIOD_S
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def _ring(self) -> None:
        self.woken(self._loop.time())
        self._wait()
