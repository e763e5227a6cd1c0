"""Notices within a second or so that a replica has stopped: hung, or going away without closing its connections.

A replica that says nothing at all while requests wait is asked for its health once; a long prefill is silent, but its
server still answers. Without an answer the replica is out, and what it has not begun to answer goes to others. The one
rule: silence alone is no evidence, and neither is an answer that this process was too busy to read in time.
Not here: probes of replicas that answer (`health`), limits on one exchange (`http.upstream`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from router.aside import Aside
from router.health import Watcher
from router.http.exchange import TimedOut
from router.http.upstream import Upstream
from router.probes import ProbeError, Refused

_log = logging.getLogger("router.vigil")

SUSPECT_FRACTION = 0.25
"""Share of `hung_s` after which a silent replica is asked; the rest is its time to answer."""
GOING_S = 2.0
"""A stream of a replica that refuses connections is broken off after this much silence."""
_LATE = 1.5  # a question that took this much longer than it may says that this process was held up itself

Ask = Callable[[str], Awaitable[object]]


class Vigil:
    """Listens to all replicas inside `async with`."""

    def __init__(
        self, upstreams: Mapping[str, Upstream], watcher: Watcher, aside: Aside, ask: Ask, *, hung_s: float
    ) -> None:
        """`ask` asks a replica for its health and raises `ProbeError`, at the latest after `answer_s(hung_s)`."""
        self._upstreams = upstreams
        self._watcher = watcher
        self._aside = aside
        self._ask = ask
        self._suspect_s = hung_s * SUSPECT_FRACTION
        self._answer_s = answer_s(hung_s)
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
        for name, upstream in self._upstreams.items():
            suspect = upstream.silent_s(now_s) >= self._suspect_s
            if suspect and name not in self._asking and now_s >= self._next_s.get(name, 0.0):
                self._asking[name] = loop.create_task(self._asked(name, upstream), name=f"ask {name}")
        self._timer = loop.call_later(self._suspect_s / 2, self._look)

    async def _asked(self, name: str, upstream: Upstream) -> None:
        time = asyncio.get_running_loop().time
        began_s = time()
        self._aside.silent(name)
        try:
            await self._ask(name)
            upstream.heard()
        except ProbeError as error:
            took_s = time() - began_s
            if took_s <= self._answer_s * _LATE and upstream.silent_s(time()) >= took_s:
                self._gone(name, upstream, error)
        except Exception:
            _log.exception("replica %s could not be asked", name)
        finally:
            self._aside.heard(name)
            del self._asking[name]
            self._next_s[name] = time() + self._suspect_s

    def _gone(self, name: str, upstream: Upstream, error: ProbeError) -> None:
        silent = f"{error}, and says nothing to the requests it has"
        if not self._watcher.silenced(name, silent):
            return  # nobody else could serve them
        upstream.given_up(TimedOut(silent))
        if isinstance(error, Refused):
            upstream.cut_off(GOING_S, asyncio.get_running_loop().time(), silent)


def answer_s(hung_s: float) -> float:
    """How long a silent replica has to answer."""
    return hung_s * (1 - SUSPECT_FRACTION)
