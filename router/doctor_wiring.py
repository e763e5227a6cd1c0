"""Wiring of the live doctor and of the hit rates: who is told of requests, and where the admin port shows it.

The one rule: they look on; a fault of theirs never fails a request. Not here: the doctor, the hits.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import to_builtins

from policies.types import Request
from router.accounts import Accounts
from router.config import Config
from router.gateway import Gateway
from router.hit_series import HitSeries
from router.hits import Hits, Routes
from router.http.messages import Call
from router.metrics import Metrics
from router.web import json_response

if TYPE_CHECKING:
    from router.doctor.live import Live

_log = logging.getLogger("router.doctor")

_MOST_SKETCHED = 8  # routes whose sketches one answer holds: up to half a megabyte each


def diagnosed(
    config: Config, gateway: Gateway, accounts: Accounts, metrics: Metrics, clock: Callable[[], float]
) -> tuple[Hits, list[web.RouteDef]]:
    """The hit rates, also in `metrics`; and `GET /hits`, and `GET /doctor` where the doctor is on."""
    hits, routes = Hits(), Routes(config.route_by)
    live = _doctor(config, clock)

    def came(request: Request, call: Call) -> None:
        label = routes.of(request, call)
        hits.came(request, label)
        if live is not None:
            try:
                live.seen(label, request.route, request.prompt_tokens, call.body)
            except Exception as error:  # only its kind: the text may quote the prompt
                _log.error("the doctor could not look at a request for %s (%s)", request.route, type(error).__name__)

    gateway.ears.append(came)
    accounts.ears.append(hits.answered)
    metrics.also(HitSeries(hits))

    async def hit_rates(_: web.Request) -> web.Response:
        return json_response(hits.document())

    found = [web.get("/hits", hit_rates)]
    if live is not None:
        found.append(_shown(live))
    return hits, found


def _doctor(config: Config, clock: Callable[[], float]) -> "Live | None":
    if not config.doctor.on:
        return None
    from router.doctor.live import Live

    kept, size = config.doctor.keep_text, config.block_tokens
    return Live(clock, cpu_clock=time.thread_time, keep_text=kept, block_tokens=size)


def _shown(live: "Live") -> web.RouteDef:
    from router.doctor.live_savings import told

    async def doctor(http: web.Request) -> web.Response:
        document = live.document()
        costliest = list(dict.fromkeys([one["route"] for one in document["findings"]]))[:_MOST_SKETCHED]
        kept = live.sketches(costliest) if "sketches" in http.query else {}

        def more() -> dict[str, Any]:
            text = live.with_text()
            sketches = {label: [to_builtins(one) for one in told(route)] for label, route in kept.items()}
            return {**({"sketches": sketches} if sketches else {}), **({} if text is None else {"text": text})}

        found = await asyncio.get_running_loop().run_in_executor(None, more)
        return json_response({**document, **found})

    return web.get("/doctor", doctor)
