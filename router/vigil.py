"""Notices within two seconds that a replica has stopped: hung, or going away without closing its connections.

A replica that says nothing at all while requests wait is asked for its health; a long prefill is silent, but its server
still answers. After two questions without an answer, each over a connection of its own, the replica is out, and what it
has not begun to answer goes to others. The one rule: silence alone is no evidence, neither is an answer that this
process was too busy to read in time, and a replica that was slow to answer lately is given more time.
Not here: probes of replicas that answer (`health`), limits on one exchange (`http.upstream`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from router.aside import Aside
from router.health import Watcher
from router.http.exchange import TimedOut
from router.http.upstream import Upstream
from router.probes import ProbeError, Refused

_log = logging.getLogger("router.vigil")

SUSPECT_S = 0.25
SUSPECT_FRACTION = 0.25
"""A silent replica is asked after this much silence, or this share of `hung_s`; the rest is its time to answer."""
SLOWER = 3.0
"""How many times longer than its slowest answer lately a replica may take."""
LONGEST = 5.0
"""How many times longer than any other it may take at most."""
_LATELY_S = 30.0  # in which an answer counts for half
GOING_S = 2.0
"""A stream of a replica that refuses connections is broken off after this much silence."""
_LATE = 1.5  # a question that took this much longer than it may says that this process was held up itself

Ask = Callable[[str], Coroutine[Any, Any, object]]


class Vigil:
    """Listens to all replicas inside `async with`."""

    def __init__(
        self, upstreams: Mapping[str, Upstream], watcher: Watcher, aside: Aside, ask: Ask, *, hung_s: float
    ) -> None:
        """`ask` asks a replica for its health over a new connection, waits at least `longest_s(hung_s)` for an answer,
        and raises `ProbeError` when there is none."""
        self._upstreams = upstreams
        self._watcher = watcher
        self._aside = aside
        self._ask = ask
        self._suspect_s = min(SUSPECT_S, hung_s * SUSPECT_FRACTION)
        self._answer_s = hung_s - self._suspect_s
        self._slowest: dict[str, tuple[float, float]] = {}
        """By replica, how long its slowest answer lately took, and when it came."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._next_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Vigil asking {' '.join(self._asking) or 'nobody'}>"

    async def __aenter__(self) -> "Vigil":
        self._look()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if len(self._next_s) > len(self._upstreams):  # of those that have left nothing is kept
            self._next_s = {name: at_s for name, at_s in self._next_s.items() if name in self._upstreams}
            self._slowest = {name: took for name, took in self._slowest.items() if name in self._upstreams}
        for name, upstream in self._upstreams.items():
            suspect = upstream.silent_s(now_s) >= self._suspect_s
            if suspect and name not in self._asking and now_s >= self._next_s.get(name, 0.0):
                self._asking[name] = loop.create_task(self._asked(name, upstream), name=f"ask {name}")
        self._timer = loop.call_later(self._suspect_s / 2, self._look)

    async def _asked(self, name: str, upstream: Upstream) -> None:
        time = asyncio.get_running_loop().time
        began_s = time()
        patience_s = self._patience_s(name, began_s)
        self._aside.silent(name)
        try:
            error = await self._unanswered(name, patience_s)
            took_s = time() - began_s
            if error is None:
                upstream.heard()
                self._slowest[name] = (max(took_s, self._lately_s(name, time())), time())
            elif took_s <= patience_s * _LATE and upstream.silent_s(time()) >= took_s:
                self._gone(name, upstream, error)
        except Exception:
            _log.exception("replica %s could not be asked", name)
        finally:
            self._aside.heard(name)
            del self._asking[name]
            self._next_s[name] = time() + self._suspect_s

    async def _unanswered(self, name: str, within_s: float) -> ProbeError | None:
        """Ask twice, the second time when half of the time is over; None once either question is answered."""
        time = asyncio.get_running_loop().time
        began_s = time()
        error = ProbeError(f"did not answer its health within {within_s:.3g} s, asked twice")
        asked: list[asyncio.Future[object]] = []
        waiting: set[asyncio.Future[object]] = set()
        try:
            for share in (0.5, 1.0):
                asked.append(asyncio.ensure_future(self._ask(name)))
                waiting.add(asked[-1])
                while waiting and (left_s := began_s + within_s * share - time()) > 0:
                    done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                    for question in done:
                        try:
                            question.result()
                        except ProbeError as told:
                            error = told
                            if isinstance(told, Refused):
                                return told
                        else:
                            return None
            return error
        finally:
            for question in asked:
                question.cancel()
            await asyncio.gather(*asked, return_exceptions=True)  # also of those nobody looked at any more

    def _patience_s(self, name: str, now_s: float) -> float:
        """How long a replica may take to answer: machines that are busy, and servers, do not fall still at once."""
        return min(max(self._answer_s, SLOWER * self._lately_s(name, now_s)), LONGEST * self._answer_s)

    def _lately_s(self, name: str, now_s: float) -> float:
        took_s, at_s = self._slowest.get(name, (0.0, now_s))
        return float(took_s * 0.5 ** ((now_s - at_s) / _LATELY_S))

    def _gone(self, name: str, upstream: Upstream, error: ProbeError) -> None:
        silent = f"{error}, and says nothing to the requests it has"
        if not self._watcher.silenced(name, silent):
            return  # nobody else could serve them
        upstream.given_up(TimedOut(silent))
        if isinstance(error, Refused):
            upstream.cut_off(GOING_S, asyncio.get_running_loop().time(), silent)


def longest_s(hung_s: float) -> float:
    """How long a silent replica has to answer at most."""
    return hung_s * LONGEST
