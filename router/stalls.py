"""Counts how often the event loop stalls: a timer that measures how late it is.

The one rule: everything of the router runs on one loop, so whatever holds it holds everybody. `busy` is a stall
in which the loop's own thread computed for as long, a fault of the router; in the others, `waiting`, it was kept from
running: by a machine with too little CPU, or by a call that blocks. Not here: finding the cause
(`PYTHONASYNCIODEBUG=1` tells).
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from router.families import Built, counter, gauge

STALL_S: Final = 0.05
"""A loop that is held longer than this is a stall."""

_PERIOD_S: Final = 0.02


class Stalls:
    """Watches the running loop, inside `async with`."""

    __slots__ = ("_computed_s", "_due_s", "_loop", "_timer", "busy", "longest_s", "waiting")

    def __init__(self) -> None:
        self.busy = self.waiting = 0
        self._computed_s = 0.0
        self.longest_s = 0.0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Stalls {self.busy} busy, {self.waiting} waiting, longest {self.longest_s:.3f} s>"

    async def __aenter__(self) -> "Stalls":
        self._loop = asyncio.get_running_loop()
        self._wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def woken(self, now_s: float, computed_s: float) -> None:
        """The timer rang at `now_s`, when the loop's thread had computed for so long."""
        late_s = now_s - self._due_s
        if late_s > STALL_S:
            if computed_s - self._computed_s > STALL_S:
                self.busy += 1
            else:
                self.waiting += 1
        self.longest_s = max(self.longest_s, late_s)

    def collect(self) -> Iterator[Built]:
        yield counter("router_loop_stalls_total", [(("busy",), self.busy), (("waiting",), self.waiting)])
        yield gauge("router_loop_longest_stall_seconds", [((), self.longest_s)])

    def _wait(self) -> None:
        self._computed_s = time.thread_time()
        self._due_s = self._loop.time() + _PERIOD_S
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def _ring(self) -> None:
        self.woken(self._loop.time(), time.thread_time())
        self._wait()
