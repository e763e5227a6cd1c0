"""Wiring: a configuration in, a running router out. Every object of the live router is made here.

The one rule: nothing is decided here. Not here: signals and exit codes (`router.cli`).
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from policies.fleet import Fleet
from policies.plugins import load
from router.accounts import Accounts
from router.config import Config, ReplicaAddress
from router.forwarding import Forwarding
from router.gateway import Gateway
from router.health import Watcher
from router.http.messages import Limits
from router.http.server import ClientConnection, Listener
from router.http.upstream import Timeouts, Upstream
from router.identity import Identity
from router.kv_events import KvEvents
from router.kv_follow import followed
from router.loading import Readers, tokenized_where
from router.metrics import Metrics
from router.models import Models, cards
from router.openai import ROUTES
from router.placing import Placing
from router.probes import session
from router.record import Recorder
from router.tenant_wiring import wired

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


def upstream(replica: ReplicaAddress, timeouts: Timeouts) -> Upstream:
    """The data plane's way to one replica."""
    parts = urlsplit(replica.url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    return Upstream(parts.hostname or "", port, timeouts=timeouts, tls=tls, base_path=parts.path.rstrip("/").encode())


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
    policy = load(config.policy.name, config.policy.settings, config.policy.seed)
    key = config.replica_key(os.environ)
    clock = time.monotonic
    fleet = Fleet(config.block_tokens)
    timeouts = Timeouts(config.timeouts.connect_s, config.timeouts.first_byte_s, config.timeouts.idle_s)
    upstreams = {replica.name: upstream(replica, timeouts) for replica in config.replicas}
    async with AsyncExitStack() as stack:
        for way in upstreams.values():
            stack.callback(way.close)
        client = await stack.enter_async_context(session(timeout_s=10.0, key=key))

        def learnt() -> None:
            found = cards(watcher.served())
            models.learnt(found)
            events.learnt()
            readers.wanted({card.root: card.id for card in found if not card.adapter}.items())

        watcher = Watcher(
            fleet,
            clock=clock,
            replica_key=key,
            changed=learnt,
            restarted=lambda name: events.restarted(name),  # noqa: PLW0108 -- events are made from the watcher
            **config.health.model_dump(),  # its settings have the watcher's names
        )
        events = followed(config, fleet, watcher, client)
        readers = Readers(config, watcher, client, where=tokenized_where(config, policy))
        stack.callback(readers.close)
        models = Models(readers.of)
        tenants = await wired(config, os.environ, clock, stack)
        metrics = Metrics(fleet=fleet, watcher=watcher, events=events, routes=ROUTES, others=tenants.families)
        level = logging.INFO if config.log.requests else logging.DEBUG
        recorder = recording(config, clock, stack)
        gateway = Gateway(
            fleet=fleet,
            placing=Placing(fleet, policy, metrics, clock),
            upstreams=upstreams,
            watcher=watcher,
            models=models,
            metrics=metrics,
            accounts=Accounts(metrics, watcher, clock, tenants.door, request_level=level, recorder=recorder),
            forwarding=Forwarding(key, tenants.credentials),
            tenants=tenants.door,
            user=Identity(config.identity.user),
            session=Identity(config.identity.session),
            clock=clock,
        )
        for replica in config.replicas:
            fleet.joined(replica.name, weight=replica.weight, capacity_blocks=replica.capacity_blocks)
            watcher.watch(replica.name, replica.url)
        await stack.enter_async_context(events)
        await stack.enter_async_context(watcher)
        await watcher.first_answers(_FIRST_ANSWERS_S)
        await readers.ready(_READERS_S)  # or the first seconds' requests go by load, on a loop that loads beside them
        listener, server, taken_over = await _listening(stack, config, gateway, watcher, told_all=not tenants.on)
        host, port = server.sockets[0].getsockname()[:2]
        admin_url = await _administered(stack, config, gateway, watcher, metrics)
        url = _shown(host, port)
        up = Running(url, admin_url, gateway, fleet, watcher, events, readers, metrics, listener, server, taken_over)
        _log.info(
            "serving %s with %s over %d replicas; admin on %s", up.url, config.policy.name, len(upstreams), admin_url
        )
        _log.info("%s", tenants.told)
        yield up


async def _listening(
    stack: AsyncExitStack, config: Config, gateway: Gateway, watcher: Watcher, *, told_all: bool
) -> tuple[Listener, asyncio.Server, web.Server]:
    """The client port: the data plane, and behind it the application for everything that is not a POST.

    Its `/health` tells how many replicas are open, and `told_all` also which and where they are.
    """
    from router.web import public_application, state, taking_over

    def health() -> dict[str, Any]:
        told = state(watcher)
        return told if told_all else {"replicas_open": told["replicas_open"]}

    application = public_application(gateway, models=watcher.models, health=health, body_bytes=config.limits.body_bytes)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=_ENDING_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    connections: set[ClientConnection] = set()
    limits = Limits(config.limits.header_bytes, config.limits.body_bytes)
    taken_over = runner.server
    assert taken_over is not None  # noqa: S101 -- set up above
    listener = Listener(gateway.serve, limits, taking_over(taken_over, limits.header_bytes), connections)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(listener, config.listen.host, config.listen.port, backlog=_BACKLOG)
    stack.callback(_aborted, connections)
    stack.callback(server.close)
    return listener, server, taken_over


async def _administered(
    stack: AsyncExitStack, config: Config, gateway: Gateway, watcher: Watcher, metrics: Metrics
) -> str:
    from router.web import admin_application, state, taking_over

    application = admin_application(
        gateway, metrics=metrics.exposition, health=lambda: state(watcher), body_bytes=config.limits.body_bytes
    )
    runner = web.AppRunner(application)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None  # noqa: S101 -- set up above
    connections = taking_over(runner.server, config.limits.header_bytes)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(connections, config.admin.host, config.admin.port)
    stack.callback(server.close)
    host, port = server.sockets[0].getsockname()[:2]
    return _shown(host, port)


def _aborted(connections: set[ClientConnection]) -> None:
    for connection in list(connections):
        connection.abort()


def _shown(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(config: Config) -> int:
    """Run until SIGTERM or SIGINT, drain, and return the exit code. A second signal ends at once."""
    import signal

    async def life() -> int:
        loop = asyncio.get_running_loop()
        stopping, now = asyncio.Event(), asyncio.Event()

        def told() -> None:
            (now if stopping.is_set() else stopping).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
        async with running(config) as up:
            await stopping.wait()
            _log.info("stopping: no new requests; running ones have %g s", config.drain_s)
            ending = asyncio.ensure_future(up.drained(config.drain_s))
            hurried = asyncio.ensure_future(now.wait())
            await asyncio.wait([ending, hurried], return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            hurried.cancel()
        return 0

    try:
        import uvloop
    except ImportError:
        return asyncio.run(life())
    return int(uvloop.run(life()))
