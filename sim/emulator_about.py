"""The emulator's routes that tell what it is and how it does: models, metrics, health, load, version, and the reset.

The one rule: nothing here takes the engine's time.
"""

import hashlib
from typing import Any

from aiohttp import web

from sim.emulator_json import answered
from sim.emulator_metrics import exposition
from sim.emulator_server import Server

VERSION = "0.32.0"
_RIGHTS = {
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


def add_about(app: web.Application, server: Server) -> None:
    """Serve these routes."""

    async def models(_http: web.Request) -> web.Response:
        base = _card(server, server.limits.model, server.root, None)
        loaded = server.limits.adapters.items()
        adapters = [_card(server, name, adapter.path, server.limits.model) for name, adapter in loaded]
        return answered({"object": "list", "data": [base, *adapters]})

    async def metrics(_http: web.Request) -> web.Response:
        text = exposition(server)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def load(_http: web.Request) -> web.Response:
        return answered({"server_load": sum(rank.live.live for rank in server.ranks)})

    async def version(_http: web.Request) -> web.Response:
        return answered({"version": VERSION})

    async def health(_http: web.Request) -> web.Response:
        return web.Response(status=503 if any(rank.live.failed for rank in server.ranks) else 200)

    async def event_sources(_http: web.Request) -> web.Response:
        sources = {str(rank.number): rank.telling.source() for rank in server.ranks}
        return answered({number: source for number, source in sources.items() if source is not None})

    async def reset(_http: web.Request) -> web.Response:
        cleared = [rank.live.engine.clear_cache() for rank in server.ranks]
        return answered({"success": all(cleared)})

    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/load", load)
    app.router.add_get("/version", version)
    app.router.add_get("/health", health)
    app.router.add_get("/ping", health)
    app.router.add_post("/ping", health)
    app.router.add_get("/kv_event_sources", event_sources)
    app.router.add_post("/reset_prefix_cache", reset)


def _card(server: Server, name: str, root: str, parent: str | None) -> dict[str, Any]:
    created = int(server.started_unix_s)
    right = {"id": f"modelperm-{hashlib.sha256(name.encode()).hexdigest()[:16]}", "object": "model_permission"}
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": server.limits.max_model_len if parent is None else None,
        "permission": [right | {"created": created} | _RIGHTS],
    }
