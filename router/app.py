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
from router.accounts import Accounts
from router.admission import admission_of
from router.aside import Aside
from router.config import Config
from router.doctor_wiring import diagnosed
from router.forwarding import Forwarding
from router.gateway import Gateway
from router.health import Watcher
from router.http.messages import Limits
from router.http.server import ClientConnection, Listener, Serve
from router.http.upstream import Upstream
from router.identity import Identity
from router.insight import shadow_policy, shadowed, traced
from router.kv_events import KvEvents
from router.kv_follow import followed
from router.loading import Readers, tokenized_where
from router.losses import Losses
from router.member_wiring import gathered
from router.membership import Membership
from router.metrics import Metrics
from router.models import Models, cards
from router.openai import ROUTES
from router.page import Page
from router.placing import Placing
from router.probes import answer, session
from router.record import Recorder
from router.reload import InForce, Reload
from router.retries import Retries
from router.tenant_wiring import wired
from router.tls import facing_clients, towards_all
from router.vigil import Vigil, answer_s

_log = logging.getLogger("router.app")

_BACKLOG = 4096  # connections that may arrive at once; a short queue costs the late ones a second
_FIRST_ANSWERS_S = 3.0
_READERS_S = 20.0
_ENDING_S = 0.5  # what is still served when the router ends has had its time to drain


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
    _listener: Listener
    _server: asyncio.Server
    _taken_over: web.Server
    """Serves the client connections that asked for something else than a POST."""

    async def drained(self, within_s: float) -> bool:
        """Take no new requests, let running ones end; True when all did in time."""
        self._server.close()
        self._taken_over.pre_shutdown()
        for connection in list(self._listener.connections):
            connection.close_when_idle()
        try:
            async with asyncio.timeout(within_s):
                while self._busy():  # noqa: ASYNC110 -- once in a process's life, and no event tells of it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            for connection in list(self._listener.connections):
                connection.abort()
            for handler in self._taken_over.connections:
                handler.force_close()
            return False
        return True

    def _busy(self) -> bool:
        return bool(self._taken_over.connections) or any(one.busy for one in self._listener.connections)


def recording(config: Config, clock: Callable[[], float], stack: AsyncExitStack) -> Recorder | None:
    """The recorder of requests where one is wanted, closed with `stack`. Raises `OSError` for a file it can't open."""
    if config.record.path is None:
        return None
    recorder = Recorder(config.record.path, config.block_tokens, max_bytes=config.record.max_bytes, clock=clock)
    stack.callback(recorder.close)
    return recorder


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

        watcher = Watcher(
            fleet,
            clock=clock,
            replica_key=key,
            tls=everywhere,
            changed=learnt,
            restarted=lambda name: events.restarted(name),  # noqa: PLW0108 -- events are made from the watcher
            **config.health.model_dump(exclude={"slow_start_s"}),  # its settings have the watcher's names
        )
        events = followed(fleet, watcher, client)
        readers = Readers(config, watcher, client, where=tokenized_where(config, policy, *seconds))
        stack.callback(readers.close)
        models = Models(readers.of)
        tenants = await wired(config, os.environ, clock, stack)
        losses = Losses(fleet, clock, ROUTES, blind=not getattr(policy, "uses_prefixes", True))
        admission = admission_of(config.admission, lambda request: fleet.view(request, clock()), clock)
        shadows = shadowed(config, seconds)
        others = (
            *tenants.families,
            losses.collect,
            *(one.collect for one in shadows),
            *([admission.collect] if admission else []),
        )
        metrics = Metrics(fleet=fleet, watcher=watcher, events=events, routes=ROUTES, others=others)
        level = logging.INFO if config.log.requests else logging.DEBUG
        recorder = recording(config, clock, stack)
        accounts = Accounts(metrics, watcher, clock, tenants.door, fleet=fleet, request_level=level, recorder=recorder)
        accounts.ears.append(losses.answered)
        accounts.choice_ears.extend(one.placed for one in shadows)
        aside = Aside(lambda: watcher.trials, lambda name: fleet.load(name)[0])
        gateway = Gateway(
            fleet=fleet,
            placing=Placing(fleet, policy, metrics, clock, aside, admission.room if admission else None),
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
            forwarding=Forwarding(key, tenants.credentials),
            tenants=tenants.door,
            user=Identity(config.identity.user),
            session=Identity(config.identity.session),
            clock=clock,
        )
        hits, shown_too = diagnosed(config, gateway, accounts, clock)
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
            gone=(metrics.forgotten, losses.forgotten, hits.forgotten),
        )
        await stack.enter_async_context(events)
        await stack.enter_async_context(watcher)
        if config.timeouts.hung_s is not None:
            await _kept_vigil(stack, key, upstreams, watcher, aside, config.timeouts.hung_s, everywhere)
        await watcher.first_answers(_FIRST_ANSWERS_S)
        await readers.ready(_READERS_S)  # or the first seconds' requests go by load, on a loop that loads beside them
        serve = traced(stack, config, gateway, accounts)
        listener, server, taken_over = await _listening(
            stack, config, gateway, serve, watcher, stopping, told_all=not tenants.on
        )
        host, port = server.sockets[0].getsockname()[:2]
        page = Page(config, policy, metrics=metrics, watcher=watcher, events=events, accounts=accounts)
        admin_url = await _administered(
            stack, config, gateway, watcher, metrics, page, reload.membership, events, shown_too
        )
        url = shown(host, port, tls=config.listen.cert_file is not None)
        up = Running(
            url,
            admin_url,
            gateway,
            fleet,
            watcher,
            events,
            reload,
            stopping,
            readers,
            metrics,
            listener,
            server,
            taken_over,
        )
        _log.info(
            "serving %s with %s over %d replicas; admin on %s", up.url, config.policy.name, len(upstreams), admin_url
        )
        _log.info("%s", tenants.told)
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
    client = await stack.enter_async_context(session(timeout_s=answer_s(hung_s), key=key, tls=tls))

    async def ask(name: str) -> None:
        for state in watcher.states():
            if state.name == name:
                await answer(client, state.url, "/health")

    vigil = Vigil(upstreams, watcher, aside, ask, hung_s=hung_s)
    await stack.enter_async_context(vigil)


async def _listening(
    stack: AsyncExitStack,
    config: Config,
    gateway: Gateway,
    serve: Serve,
    watcher: Watcher,
    stopping: asyncio.Event,
    *,
    told_all: bool,
) -> tuple[Listener, asyncio.Server, web.Server]:
    """The client port: the data plane, and behind it the application for everything that is not a POST.

    Its `/health` tells how many replicas are open, and `told_all` also which and where they are.
    """
    from router.web import public_application, state, taking_over

    def health() -> dict[str, Any]:
        told = {"stopping": stopping.is_set(), **state(watcher)}
        return told if told_all else {word: told[word] for word in ("stopping", "replicas_open")}

    application = public_application(
        gateway, serve, models=watcher.models, health=health, body_bytes=config.limits.body_bytes
    )
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=_ENDING_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    connections: set[ClientConnection] = set()
    limits = Limits(config.limits.header_bytes, config.limits.body_bytes)
    taken_over = runner.server
    assert taken_over is not None  # noqa: S101 -- set up above
    otherwise, known = taking_over(taken_over, limits.header_bytes), gateway.tenants.known
    listener = Listener(serve, limits, otherwise, connections, known)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        listener, config.listen.host, config.listen.port, backlog=_BACKLOG, ssl=facing_clients(config.listen)
    )
    stack.callback(_aborted, connections)
    stack.callback(server.close)
    return listener, server, taken_over


async def _administered(
    stack: AsyncExitStack,
    config: Config,
    gateway: Gateway,
    watcher: Watcher,
    metrics: Metrics,
    page: Page,
    membership: Membership,
    events: KvEvents,
    more: Iterable[web.RouteDef],
) -> str:
    from router.member_routes import member_routes
    from router.web import admin_application, state, taking_over

    application = admin_application(
        gateway,
        metrics=metrics.exposition,
        health=lambda: state(watcher, events),
        body_bytes=config.limits.body_bytes,
        routes=[*page.routes(), *member_routes(membership, config), *more],
    )
    runner = web.AppRunner(application)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await stack.enter_async_context(page)
    assert runner.server is not None  # noqa: S101 -- set up above
    connections = taking_over(runner.server, config.limits.header_bytes)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(connections, config.admin.host, config.admin.port)
    stack.callback(server.close)
    host, port = server.sockets[0].getsockname()[:2]
    return shown(host, port)


def _aborted(connections: set[ClientConnection]) -> None:
    for connection in list(connections):
        connection.abort()


def shown(host: str, port: int, *, tls: bool = False) -> str:
    """The URL of a port."""
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
