"""The page for operators at `GET /` of the admin port, and the events that keep it moving.

The one rule: a snapshot is made once a second for all watchers together, and not at all while there are none; a watcher
too slow for one gets the next. Not here: what a snapshot holds (`router.watch`), and how it looks (`data/page/`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

import orjson
from aiohttp import web

from policies.types import Policy
from router import __version__
from router.accounts import Accounts
from router.config import Config
from router.health import Watcher
from router.hits import Hits
from router.kv_events import KvEvents
from router.metrics import Metrics
from router.placing import Placed
from router.watch import Decisions, History, Samples, largest, snapshot

_log = logging.getLogger("router.page")

MOST_WATCHERS = 32
_SNAPSHOT_S = 1.0
_HISTORY_S = 5.0
_STUCK_S = 30.0

FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/chart.js": ("chart.js", "text/javascript"),
    "/uplot.css": ("uplot.css", "text/css"),
    "/uplot.js": ("uplot.js", "text/javascript"),
}
"""What is served, from `data/page/`. uPlot is vendored as published, with its licence beside it."""

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page:
    """Serves the page to a bounded number of watchers. Takes a point of history now and then, watched or not."""

    def __init__(
        self,
        config: Callable[[], Config],
        policy: Policy,
        metrics: Metrics,
        watcher: Watcher,
        events: KvEvents,
        accounts: Accounts,
        hits: Hits,
        *,
        most_watchers: int = MOST_WATCHERS,
        snapshot_s: float = _SNAPSHOT_S,
        history_s: float = _HISTORY_S,
    ) -> None:
        """`config` gives the configuration in force: it may be read again."""
        self._metrics = metrics
        self._watcher = watcher
        self._events = events
        self._accounts = accounts
        self._hits = hits
        self._config = config
        self._most_watchers = most_watchers
        self._snapshot_s = snapshot_s
        self._history_s = history_s
        self._history = History()
        self._decisions = Decisions(time.time, costs_by(policy))
        self._latest = b""
        self._watching: set[asyncio.Event] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Page with {len(self._watching)} watchers>"

    async def __aenter__(self) -> "Page":
        self._tasks["history"] = asyncio.create_task(self._every(self._history_s, self._remember), name="history")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def ended(self, _: web.Application) -> None:
        """The application is shutting down: let its watchers go, which would never leave by themselves."""
        self._closed = True
        self._wake()

    def routes(self) -> list[web.RouteDef]:
        """For the admin application."""
        return [*(web.get(path, _served(*named)) for path, named in FILES.items()), web.get("/events", self._watched)]

    # -- watchers ----------------------------------------------------------------------------------------------------

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        """Events for one watcher, until it leaves or the router ends: `hello` once, then `snapshot` again and again."""
        if len(self._watching) >= self._most_watchers:
            text = f"{self._most_watchers} watch already; close a page and load this one again\n"
            return web.Response(status=503, text=text, headers={**HEADERS, "Retry-After": "10"})
        woken = asyncio.Event()
        self._joined(woken)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
        try:
            with suppress(ConnectionError, TimeoutError):
                await response.prepare(request)
                await self._send(response, _event("hello", self._hello(request.app)))
                while not self._closed:
                    await self._send(response, self._latest)
                    await woken.wait()
                    woken.clear()
        finally:
            self._left(woken)
        return response

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(_STUCK_S):
            await response.write(data)

    def _joined(self, woken: asyncio.Event) -> None:
        self._watching.add(woken)
        if len(self._watching) == 1:
            self._accounts.ears.append(self._decisions.ended)
            self._look()
            self._tasks["snapshots"] = asyncio.create_task(self._every(self._snapshot_s, self._look), name="snapshots")

    def _left(self, woken: asyncio.Event) -> None:
        self._watching.discard(woken)
        if not self._watching:
            self._tasks["snapshots"].cancel()
            self._accounts.ears.remove(self._decisions.ended)
            self._decisions.forget()

    def _wake(self) -> None:
        for woken in self._watching:
            woken.set()

    # -- what they see -----------------------------------------------------------------------------------------------

    async def _every(self, pause_s: float, made: Callable[[], None]) -> None:
        """Rarer where it takes long: requests wait meanwhile, so it may have a hundredth of the time."""
        took_s = 0.0
        while True:
            await asyncio.sleep(max(pause_s, 100 * took_s))
            began_s = time.perf_counter()
            try:
                made()
            except Exception:
                _log.exception("the page can't be brought up to date; the next try comes in %g s", pause_s)
            took_s = time.perf_counter() - began_s

    def _hello(self, application: web.Application) -> dict[str, Any]:
        served = {resource.canonical for resource in application.router.resources()}
        policy = self._config().policy
        return {
            "version": __version__,
            "policy": policy.name,
            "shadow": policy.shadow,
            "doctor": "/doctor" in served,
            "history": self._history.points(),
        }

    def _remember(self) -> None:
        self._history.took(time.time(), largest(self._hits.sums()))

    def _look(self) -> None:
        seen = snapshot(
            time_s=time.time(),
            samples=Samples(self._metrics.collect()),
            sums=largest(self._hits.sums()),
            states=self._watcher.states(),
            events=self._events.states(),
            decisions=self._decisions.rows(),
            block_tokens=self._config().block_tokens,
        )
        self._latest = _event("snapshot", seen)
        self._wake()


def costs_by(policy: Policy) -> Callable[[Placed], Mapping[str, float]]:
    """What each replica would have cost by the policy's own account; nothing where it gives none."""

    def costs(placed: Placed) -> Mapping[str, float]:
        explained = getattr(policy, "explained", None)  # asked each time: another policy may be in force by now
        if not callable(explained):
            return {}
        try:
            return dict(explained(placed.request, placed.view))
        except Exception:
            _log.debug("the policy could not explain a choice", exc_info=True)  # the page does without
            return {}

    return costs


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


def _served(name: str, kind: str) -> Callable[[web.Request], Any]:
    body = (files("router") / "data" / "page" / name).read_bytes()

    async def served(_: web.Request) -> web.Response:
        return web.Response(body=body, headers=HEADERS, content_type=kind, charset="utf-8")

    return served
