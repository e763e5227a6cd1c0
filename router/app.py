"""Wiring: a configuration in, a running router out. Every object of the live router is made here.

The one rule: nothing is decided here. Not here: signals (`serving`), exit codes (`cli`).
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from policies.fleet import Fleet
from policies.plugins import load
from policies.types import Policy
from router.accounts import Accounts
from router.admission import Admission, admission_of
from router.aside import Aside
from router.config import Config
from router.cors import Origins
from router.doctor_wiring import diagnosed
from router.forwarding import forwardings
from router.gateway import Gateway
from router.health import Watcher
from router.hosts import only_by
from router.http.listener import Serve, Told, untold
from router.http.upstream import Upstream
from router.identity import Identity
from router.insight import counted, shadow_policy, traced
from router.kv_events import KvEvents
from router.kv_follow import followed
from router.loading import Readers, tokenized_where
from router.member_wiring import gathered
from router.metrics import Metrics
from router.models import Models, cards
from router.page import Page
from router.placing import Placing
from router.ports import Doors, administered, listening
from router.probes import answer, session
from router.reload import InForce, Reload
from router.retries import Retries
from router.stalls import Stalls
from router.tenant_wiring import Wired, wired
from router.tls import facing_clients, towards_all
from router.vigil import Vigil, longest_s

_log = logging.getLogger("router.app")

_FIRST_ANSWERS_S = 3.0
_READERS_S = 20.0


@dataclass(frozen=True, slots=True)
class Running:
    """A router that is up."""

    url: str
    admin_url: str
    gateway: Gateway
    fleet: Fleet
    watcher: Watcher
    events: KvEvents
    reload: Reload
    stopping: asyncio.Event
    """Set when the router is about to end: `/health` says so."""
    readers: Readers
    metrics: Metrics
    doors: Doors

    async def drained(self, within_s: float) -> bool:
        """Take no new requests, let running ones end; True when all did in time."""
        return await self.doors.drained(within_s)


def _watcher(
    config: Config,
    fleet: Fleet,
    clock: Callable[[], float],
    key: str | None,
    tls: ssl.SSLContext,
    changed: Callable[[], None],
    restarted: Callable[[str], None],
) -> Watcher:
    rules = config.health.model_dump(exclude={"slow_start_s"})  # its settings have the watcher's names
    return Watcher(fleet, clock=clock, replica_key=key, tls=tls, changed=changed, restarted=restarted, **rules)


async def _ready(watcher: Watcher, tenants: Wired, readers: Readers) -> None:
    await watcher.first_answers(_FIRST_ANSWERS_S)
    await tenants.ready(_FIRST_ANSWERS_S)
    await readers.ready(_READERS_S)  # or the first seconds' requests go by load, on a loop that loads beside them


def _gateway(
    config: Config,
    fleet: Fleet,
    policy: Policy,
    metrics: Metrics,
    clock: Callable[[], float],
    aside: Aside,
    admission: Admission | None,
    upstreams: Mapping[str, Upstream],
    watcher: Watcher,
    models: Models,
    accounts: Accounts,
    tenants: Wired,
    key: str | None,
) -> Gateway:
    return Gateway(
        fleet=fleet,
        placing=Placing(fleet, policy, metrics.policy_failed, clock, aside, admission.room if admission else None),
        upstreams=upstreams,
        admission=admission,
        retries=Retries(
            fleet=fleet,
            watcher=watcher,
            aside=aside,
            metrics=metrics,
            clock=clock,
            admission=admission,
            **config.retries.model_dump(),
        ),
        models=models,
        accounts=accounts,
        forwarding=forwardings(key, tenants.credentials),
        tenants=tenants.door,
        user=Identity(config.identity.user),
        session=Identity(config.identity.session),
        clock=clock,
    )


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Running]:
    """A router for as long as the block lasts. Raises `PolicyError`, `ConfigError`, or `OSError` for a taken port."""
    policy = InForce(load(config.policy.name, config.policy.settings, config.policy.seed))
    seconds = shadow_policy(config)
    key = config.replica_key(os.environ)
    clock = time.monotonic
    fleet = Fleet(config.block_tokens)
    upstreams: dict[str, Upstream] = {}
    stopping = asyncio.Event()
    contexts: dict[str, ssl.SSLContext] = {}  # by host, for those who ask all replicas
    everywhere = towards_all(contexts)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(session(timeout_s=10.0, key=key, tls=everywhere))

        def learnt() -> None:
            found = cards(watcher.served())
            models.learnt(found)
            if admission is not None:
                admission.freed()
            events.learnt()
            readers.wanted({card.root: card.id for card in found if not card.adapter}.items())

        # Events are made from the watcher, so they are looked up when they are told.
        watcher = _watcher(config, fleet, clock, key, everywhere, learnt, lambda name: events.restarted(name))  # noqa: PLW0108
        events = followed(fleet, watcher, client)
        readers = Readers(config, watcher, client, where=tokenized_where(config, policy, *seconds))
        stack.callback(readers.close)
        models = Models(readers.of)
        tenants = await wired(config, os.environ, clock, stack, watcher, client)
        admission = admission_of(config.admission, lambda request: fleet.view(request, clock()), clock)
        stalls = Stalls()
        families = (*tenants.families, stalls.collect, *([admission.collect] if admission else []))
        metrics, accounts = counted(
            config, stack, clock, policy, seconds, fleet, watcher, events, tenants.door, families
        )
        aside = Aside(watcher.trials, lambda name: fleet.load(name)[0])
        gateway = _gateway(
            config, fleet, policy, metrics, clock, aside, admission, upstreams, watcher, models, accounts, tenants, key
        )
        hits, shown_too = diagnosed(config, gateway, accounts, metrics, clock)
        reload = await gathered(
            config,
            policy,
            stack,
            fleet=fleet,
            watcher=watcher,
            events=events,
            upstreams=upstreams,
            contexts=contexts,
            ask=partial(answer, client),
            clock=clock,
            gone=(metrics.forgotten, hits.forgotten, accounts.forgotten),
        )
        await stack.enter_async_context(events)
        await stack.enter_async_context(watcher)
        if config.timeouts.hung_s is not None:
            await _kept_vigil(stack, key, upstreams, watcher, aside, config.timeouts.hung_s, everywhere)
        await _ready(watcher, tenants, readers)
        serve = traced(stack, config, gateway, accounts)
        doors = await _public(stack, config, gateway, serve, watcher, stopping, told_all=not tenants.on)
        reload.patience = doors.sweep
        page = Page(lambda: reload.config, policy, metrics, watcher, events, accounts, hits)
        admin_url = await _administered(stack, reload, gateway, watcher, metrics, page, events, shown_too)
        up = Running(doors.url, admin_url, gateway, fleet, watcher, events, reload, stopping, readers, metrics, doors)
        _log.info(
            "serving %s with %s over %d replicas; admin on %s", up.url, config.policy.name, len(upstreams), admin_url
        )
        _log.info("%s", tenants.told)
        await stack.enter_async_context(stalls)  # last: what takes long while it starts holds up nobody
        yield up


async def _kept_vigil(
    stack: AsyncExitStack,
    key: str | None,
    upstreams: Mapping[str, Upstream],
    watcher: Watcher,
    aside: Aside,
    hung_s: float,
    tls: ssl.SSLContext,
) -> None:
    """Listen for replicas that hang, on connections that no slow probe can hold."""
    client = await stack.enter_async_context(session(timeout_s=longest_s(hung_s), key=key, tls=tls))

    async def ask(name: str) -> None:
        for state in watcher.states():
            if state.name == name:
                await answer(client, state.url, "/health")

    vigil = Vigil(upstreams, watcher, aside, ask, hung_s=hung_s)
    await stack.enter_async_context(vigil)


async def _public(
    stack: AsyncExitStack,
    config: Config,
    gateway: Gateway,
    serve: Serve,
    watcher: Watcher,
    stopping: asyncio.Event,
    *,
    told_all: bool,
) -> Doors:
    """The client port. Its `/health` tells how many replicas are open, and `told_all` also which and where they are."""
    from router.web import public_application, state

    def health() -> dict[str, Any]:
        told = {"stopping": stopping.is_set(), **state(watcher)}
        return told if told_all else {word: told[word] for word in ("stopping", "replicas_open")}

    application = public_application(
        gateway, serve, models=watcher.models, health=health, body_bytes=config.limits.body_bytes
    )
    told: Told = untold
    if config.cors.allow_origins:
        origins = Origins(config.cors.allow_origins)
        origins.joined(application)
        serve, told = origins.serving(serve), origins.told_of
    tls = facing_clients(config.listen)
    return await listening(stack, config, serve, gateway.tenants.known, application, tls, told)


async def _administered(
    stack: AsyncExitStack,
    reload: Reload,
    gateway: Gateway,
    watcher: Watcher,
    metrics: Metrics,
    page: Page,
    events: KvEvents,
    more: Iterable[web.RouteDef],
) -> str:
    from router.member_routes import member_routes
    from router.web import admin_application, state

    config = reload.config
    application = admin_application(
        gateway,
        metrics=metrics.scraped,
        health=lambda: state(watcher, events),
        body_bytes=config.limits.body_bytes,
        routes=[*page.routes(), *member_routes(reload.membership, config), *more],
    )
    application.middlewares.append(only_by(config.admin.host, config.admin.allowed_hosts))
    application.on_shutdown.append(page.ended)
    await stack.enter_async_context(page)
    return await administered(stack, config, application)
