"""Asks every replica how it is: `/health`, `/v1/models`, `/metrics`; tells the fleet what changed.

One task per replica, which ends with it. The one rule: a change is logged once, in a line that says what happened and
what will bring the replica back. Not here: the table that decides (`hysteresis`), and who owns the fleet.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from policies.fleet import Fleet
from router.engine_metrics import EngineMetrics, parse
from router.hysteresis import CLOSED, FIRST_COOLDOWN_S, OPEN, STARTING, TRIAL
from router.hysteresis import Health as Health
from router.models import cards
from router.probes import ProbeError, answer, model_entries, session
from router.ranks import rank_of

_log = logging.getLogger("router.health")

_MODELS_EVERY = 5  # rounds between two looks at /v1/models; adapters come and go


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """How one replica stands: a row of `/health`, `/state` and the metrics."""

    name: str
    url: str
    state: str
    """`starting`, `open`, `trial` (open, one failure from closed) or `closed`."""
    reason: str
    state_age_s: float
    models: tuple[str, ...] | None
    failures: dict[str, int]
    """Failed requests by kind since the start."""
    restarts: int
    engine: EngineMetrics | None

    @property
    def usable(self) -> bool:
        return self.state in (OPEN, TRIAL)


@dataclass(slots=True)
class _Watched:
    """One replica being watched."""

    name: str
    url: str
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    rounds: int = 0
    entries: list[dict[str, Any]] | None = None
    engine: EngineMetrics | None = None
    restarts: int = 0
    told: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"replica {self.name} ({self.url})"


class Watcher:
    """Watches the replicas of one fleet, inside `async with`; `watch` adds one that the fleet knows already."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Callable[[], float],
        interval_s: float = 2.0,
        timeout_s: float = 5.0,
        fall: int = 2,
        rise: int = 1,
        passive: bool = True,
        cooldown_s: float = FIRST_COOLDOWN_S,
        replica_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        changed: Callable[[], None] = lambda: None,
        restarted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._health = Health(fall=fall, rise=rise, passive=passive, cooldown_s=cooldown_s)
        self._changed, self._restarted = changed, restarted
        self._watched: dict[str, _Watched] = {}
        self._session: aiohttp.ClientSession | None = None
        self._replica_key = replica_key
        self._tls = tls
        self.models_ears: list[Callable[[str, list[dict[str, Any]] | None], None]] = []
        """Who is told what a replica serves, each time it is asked; None when it says nothing, or is asked no more."""

    def __repr__(self) -> str:
        return f"<Watcher {self._health!r}>"

    async def __aenter__(self) -> "Watcher":
        self._session = session(timeout_s=self._timeout_s, key=self._replica_key, tls=self._tls)
        for watched in self._watched.values():
            self._begin(watched)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [watched.task for watched in self._watched.values() if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- membership ------------------------------------------------------------------------------------------------

    def watch(self, name: str, url: str) -> None:
        """Watch a replica that has joined the fleet; it is in no view until it has answered."""
        if name in self._watched:
            raise ValueError(f"replica {name!r} is watched already")
        watched = self._watched[name] = _Watched(name, url)
        self._health.joined(name, self._clock())
        self._fleet.closed(name)
        if self._session is not None:
            self._begin(watched)

    async def unwatch(self, name: str) -> None:
        """Stop asking a replica, before it leaves the fleet."""
        watched = self._watched.pop(name)
        self._health.left(name)
        if watched.task is not None:
            watched.task.cancel()
            await asyncio.gather(watched.task, return_exceptions=True)
        for ear in self.models_ears:
            ear(name, None)
        self._changed()

    async def first_answers(self, within_s: float) -> None:
        """Return when every replica has been asked once, or after `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(watched.seen.wait() for watched in self._watched.values()))

    # -- what the gateway tells and asks ---------------------------------------------------------------------------

    def failed(self, name: str, kind: str) -> None:
        """A request failed at this replica; `kind` is a constant word such as `unreachable`, `cut` or `status_5xx`."""
        watched = self._watched.get(name)
        if watched is None:
            return
        self._told(watched, self._health.failed(name, kind, self._clock()))
        watched.wake.set()

    def succeeded(self, name: str) -> None:
        self._health.succeeded(name, self._clock())

    def silenced(self, name: str, trouble: str) -> bool:
        """The replica answers nobody any more; true when it is out now, false when nobody could take its place."""
        watched = self._watched.get(name)
        if watched is None:
            return True
        self._told(watched, self._health.silenced(name, trouble, self._clock()))
        watched.wake.set()
        return not self._health[name].usable

    @property
    def trials(self) -> Collection[str]:
        """The replicas on trial: one request at a time, until one succeeds."""
        return self._health.trials

    def states(self) -> tuple[ReplicaState, ...]:
        now_s = self._clock()
        return tuple(self._state(watched, now_s) for watched in self._watched.values())

    def root(self, name: str) -> str | None:
        """The root of the base model a replica serves; None while that is not known."""
        return next((card.root for card in cards(self._watched[name].entries or ()) if not card.adapter), None)

    def usable_blocks(self, name: str) -> int | None:
        """How many blocks of its own a replica can hold, as it says itself."""
        engine = self._watched[name].engine
        return None if engine is None else engine.usable_blocks

    def served(self) -> list[dict[str, Any]]:
        """The `/v1/models` entries of all usable replicas as they sent them, the first one of each id."""
        merged: dict[object, dict[str, Any]] = {}
        for watched in self._watched.values():
            if self._health[watched.name].usable:
                for entry in watched.entries or ():
                    merged.setdefault(entry.get("id"), entry)
        return list(merged.values())

    def models(self) -> bytes:
        """The merged answer to `/v1/models`."""
        return orjson.dumps({"object": "list", "data": self.served()})

    # -- one replica -----------------------------------------------------------------------------------------------

    def _begin(self, watched: _Watched) -> None:
        watched.task = asyncio.create_task(self._watch(watched), name=f"watch {watched.name}")

    async def _watch(self, watched: _Watched) -> None:
        while True:
            watched.wake.clear()
            try:
                await self.asked(watched.name)
            except Exception:
                _log.exception("the probe of %s failed; it will be asked again", watched)
            watched.seen.set()
            await self._pause(watched)

    async def _pause(self, watched: _Watched) -> None:
        """Wait until the next probe is due; a failed request brings it nearer."""
        began_s = self._clock()
        while True:
            left_s = began_s + self._health.due_s(watched.name, began_s, self._interval_s) - self._clock()
            if left_s <= 0:
                return
            watched.wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await watched.wake.wait()

    async def asked(self, name: str) -> None:
        """One round: is it healthy, what does it serve, how busy is it."""
        watched = self._watched[name]
        health = self._health
        try:
            await self._answer(watched, "/health")
            if not health[name].usable or watched.rounds % _MODELS_EVERY == 0:
                await self._learn_models(watched)
        except ProbeError as error:
            if health[name].state == STARTING and health[name].bad_probes == 0:
                _log.warning("%s %s; serving without it until it answers /health", watched, error)
            watched.rounds = 0
            self._told(watched, health.probed(name, self._clock(), str(error)))
            return
        await self._learn_metrics(watched)
        watched.rounds += 1
        self._told(watched, health.probed(name, self._clock()))

    async def _learn_models(self, watched: _Watched) -> None:
        """A replica that refuses or lacks `/v1/models` may still be used; one that can't answer yet may not."""
        try:
            body = await self._answer(watched, "/v1/models", passed=(401, 403, 404, 405))
            entries = None if body is None else model_entries(body)
        except ProbeError:
            if self._health[watched.name].usable:
                return  # it has told before; only /health decides whether it stays
            raise
        if entries is None and "key" not in watched.told:
            self._once(watched, "models", "%s tells no models; every model is sent to it", watched)
        for ear in self.models_ears:
            ear(watched.name, entries)
        known = None if entries is None else frozenset(entry["id"] for entry in entries)
        if entries != watched.entries or watched.rounds == 0:
            watched.entries = entries
            self._fleet.serves(watched.name, known)
            self._health.serves(watched.name, known)
            self._changed()

    async def _learn_metrics(self, watched: _Watched) -> None:
        self._fleet.asked(watched.name)
        try:
            text = await self._answer(watched, "/metrics") or b""
        except ProbeError as error:
            self._once(watched, "metrics", "%s %s; its load and cache size stay unknown", watched, error)
            return
        engine = parse(text.decode("utf-8", "replace"), rank_of(watched.url))
        if watched.engine is not None and engine.restarted_since(watched.engine):
            watched.restarts += 1
            self._restarted(watched.name)
            self._fleet.cleared(watched.name)
            _log.info("%s has restarted; its cache counts as empty", watched)
        if engine.prefix_caching is False:
            self._once(
                watched, "caching", "%s runs with prefix caching off; no prefix will ever be found there", watched
            )
        watched.engine = engine
        self._fleet.reported(watched.name, engine.report, self._clock())

    async def _answer(self, watched: _Watched, path: str, passed: tuple[int, ...] = ()) -> bytes | None:
        """The body of a 200; None for a status in `passed`. Everything else is a `ProbeError`."""
        assert self._session is not None, "the watcher is used inside `async with`"  # noqa: S101
        status, body = await answer(self._session, watched.url, path)
        if status in (401, 403):
            keyless = self._replica_key is None
            remedy = "wants an API key: set replica_key_env" if keyless else "refused the router's key"
            self._once(watched, "key", "%s answered %s to %s; it %s", watched, status, path, remedy)
        if status == 200:
            return body
        if status in passed:
            return None
        raise ProbeError(f"answered {status} to {path}")

    def _once(self, watched: _Watched, topic: str, message: str, *parts: object) -> None:
        if topic not in watched.told:
            watched.told.add(topic)
            _log.warning(message, *parts)

    def _told(self, watched: _Watched, change: str | None) -> None:
        """Pass a change on to the fleet and the log."""
        if change is None:
            return
        row = self._health[watched.name]
        if change == CLOSED:
            self._fleet.closed(watched.name)
            watched.told.clear()
            _log.warning("%s %s; it is out until it answers /health", watched, row.reason)
        else:
            self._fleet.opened(watched.name)
            _log.info("%s is %s: %s", watched, "in" if change == OPEN else "back", _described(watched))
        self._changed()

    def _state(self, watched: _Watched, now_s: float) -> ReplicaState:
        row = self._health[watched.name]
        models = None if watched.entries is None else tuple(entry["id"] for entry in watched.entries)
        told = (row.state, row.reason, now_s - row.since_s, models, dict(row.failures))
        return ReplicaState(watched.name, watched.url, *told, watched.restarts, watched.engine)


def _described(watched: _Watched) -> str:
    serves = ", ".join(entry["id"] for entry in watched.entries or ()) or "any model"
    return f"serves {serves}; {(watched.engine or EngineMetrics()).size}"
