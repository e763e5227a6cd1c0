"""vLLM's routes that load and unload LoRA adapters while the server runs.

    POST /v1/load_lora_adapter     {"lora_name", "lora_path", "load_inplace"}
    POST /v1/unload_lora_adapter   {"lora_name"}

The one rule: they are always there; vLLM 0.32 wants VLLM_ALLOW_RUNTIME_LORA_UPDATING in its environment for them.
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from sim.emulator_refusals import Refusal, invalid, missing
from sim.emulator_requests import Limits, read_body


def add_loading(app: web.Application, limits: Limits) -> None:
    """Serve these routes."""

    async def load(http: web.Request) -> web.Response:
        body = await _body(http)
        name, path = _text(body, "lora_name"), _text(body, "lora_path")
        if not name or not path:
            raise Refusal(400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput")
        if name == limits.model:
            message = f"The lora adapter '{name}' conflicts with a served base model."
            raise Refusal(400, message, "InvalidUserInput")
        if name in limits.adapters and not body.get("load_inplace"):
            message = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place,"
            raise Refusal(400, f"{message} set 'load_inplace' to True.", "InvalidUserInput")
        limits.adapters.load(name, path)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(http: web.Request) -> web.Response:
        name = _text(await _body(http), "lora_name")
        if not name:
            raise Refusal(400, "'lora_name' needs to be provided to unload a LoRA adapter.", "InvalidUserInput")
        if name not in limits.adapters:
            raise Refusal(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        limits.adapters.unload(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    app.router.add_post("/v1/load_lora_adapter", load)
    app.router.add_post("/v1/unload_lora_adapter", unload)


async def _body(http: web.Request) -> dict[str, Any]:
    return read_body(await http.read(), http.headers.get("Content-Type", ""))


def _text(body: Mapping[str, Any], field: str) -> str:
    if field not in body:
        raise missing(field, body)
    if not isinstance(body[field], str):
        raise invalid("string_type", f"body.{field}", "Input should be a valid string", body[field])
    return str(body[field])
