"""Wiring of what looks on while requests are served: counters, the recorder, a shadow policy, and tracing.

The one rule: what is off costs nothing; its module is not even imported. Not here: the page (`router.page`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

from policies.fleet import Fleet
from policies.plugins import load
from policies.types import Policy
from router.accounts import Accounts
from router.adapters import Adapters
from router.config import Config
from router.errors import ConfigError
from router.families import Built
from router.gateway import Gateway
from router.health import Watcher
from router.http.listener import Serve
from router.kv_doubts import Doubts
from router.kv_events import KvEvents
from router.losses import Losses
from router.metrics import Metrics
from router.openai import ROUTES
from router.record import Recorder
from router.tenants import Door

if TYPE_CHECKING:
    from router.shadow import Shadow

_SENT_S: Final = 5.0  # for the last spans, when the router ends


def recording(config: Config, clock: Callable[[], float], stack: AsyncExitStack) -> Recorder | None:
    """The recorder of requests where one is wanted, closed with `stack`. Raises `OSError` for a file it can't open."""
    if config.record.path is None:
        return None
    recorder = Recorder(config.record.path, config.block_tokens, max_bytes=config.record.max_bytes, clock=clock)
    stack.callback(recorder.close)
    return recorder


def counted(
    config: Config,
    stack: AsyncExitStack,
    clock: Callable[[], float],
    policy: Policy,
    seconds: tuple[Policy, ...],
    fleet: Fleet,
    watcher: Watcher,
    events: KvEvents,
    door: Door,
    families: tuple[Callable[[], Iterator[Built]], ...],
) -> tuple[Metrics, Accounts]:
    """What counts requests, and who is told of them; `families` build what is counted elsewhere."""
    losses = Losses(fleet, clock, ROUTES, blind=not getattr(policy, "uses_prefixes", True), label=door.label)
    shadows = shadowed(config, seconds)
    others = (*families, losses.collect, *(one.collect for one in shadows))
    metrics = Metrics(fleet=fleet, watcher=watcher, events=events, routes=ROUTES, others=others)
    level = logging.INFO if config.log.requests else logging.DEBUG
    recorder = recording(config, clock, stack)
    accounts = Accounts(metrics, watcher, clock, door, fleet=fleet, request_level=level, recorder=recorder)
    adapters = Adapters(fleet, events.reloaded)
    watcher.models_ears.append(adapters.told)
    doubts = Doubts(events.disbelieved, events.removed_s, clock)
    accounts.ears += [losses.answered, doubts.ended, adapters.ended]
    accounts.gone_ears += [losses.forgotten, doubts.forgotten]
    accounts.choice_ears.extend(one.placed for one in shadows)
    return metrics, accounts


def shadow_policy(config: Config) -> tuple[Policy, ...]:
    """The second policy, if there is one. Raises `PolicyError`."""
    return () if config.policy.shadow is None else (load(config.policy.shadow, {}, config.policy.seed),)


def shadowed(config: Config, policies: tuple[Policy, ...]) -> "tuple[Shadow, ...]":
    """What counts where the second policy parts from the live one."""
    if not policies or config.policy.shadow is None:
        return ()
    from router.shadow import Shadow

    return tuple(Shadow(config.policy.shadow, one, ROUTES, asyncio.get_running_loop().call_soon) for one in policies)


def traced(stack: AsyncExitStack, config: Config, gateway: Gateway, accounts: Accounts) -> Serve:
    """How requests are served: by the gateway, inside spans where those are wanted. Raises `ConfigError`."""
    endpoint = config.tracing.endpoint
    if endpoint is None:
        return gateway.serve
    try:
        from router.tracing import Tracing, exporting
    except ImportError as error:
        remedy = "pip install 'prefix-router[otel]'"
        raise ConfigError(f"tracing.endpoint needs OpenTelemetry ({error.name} is missing): {remedy}") from None
    tracing = Tracing(exporting(endpoint), gateway.serve)

    async def close() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SENT_S):
                await asyncio.to_thread(tracing.close)

    stack.push_async_callback(close)
    accounts.choice_ears.append(tracing.placed)
    accounts.ears.append(tracing.ended)
    accounts.refusal_ears.append(tracing.refused)
    return tracing.serve
