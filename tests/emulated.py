"""An emulated replica over loopback sockets, and how a client asks it.

The one rule: bytes are tokens, so a test can count them by eye.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from sim.cost import PROFILES
from sim.emulator import Emulator, start

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
LONG = "a rather long prompt that fills several blocks of sixteen bytes each, as bytes are tokens here"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5},
    COMPLETIONS: {"prompt": LONG, "max_tokens": 5},
    MESSAGES: {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5},
    RESPONSES: {"input": LONG, "max_output_tokens": 5},
}


def tokenize(route: str, body: dict[str, Any]) -> list[int]:
    """Bytes are tokens; a chat is its contents, each before a line end."""
    if route == COMPLETIONS:
        return list(str(body["prompt"]).encode())
    if route == RESPONSES:
        return list(str(body["input"]).encode())
    return list("".join(message["content"] + "\n" for message in body["messages"]).encode())


def detokenize(ids: list[int]) -> str:
    return bytes(ids).decode("latin-1")


async def emulated(*, port: int = 0, **settings: Any) -> Emulator:
    given: dict[str, Any] = {
        "name": "r1",
        "model": "tiny",
        "blocks": 400,
        "block_tokens": 16,
        "profile": PROFILES["llama-3.1-8b-h100"],
        "speed": 200.0,
        "tokenize": tokenize,
        "detokenize": detokenize,
        "max_model_len": 2048,
        "root": "/models/tiny",
        "adapters": ["sql"],
        "vocabulary_tokens": 300,
    }
    return await start("127.0.0.1", port, **(given | settings))


async def post(client: aiohttp.ClientSession, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    async with client.post(path, json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == status, answer
        return answer


async def stream(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Data of every event; the closing [DONE] is left out."""
    async with client.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        lines = (await response.read()).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]


def cached(answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return int(details["cached_tokens"] if details else usage["cache_read_input_tokens"])


async def until(happened: Callable[[], bool]) -> None:
    """What the other end of a socket does has no event here: look again, for a second at most."""
    async with asyncio.timeout(1):
        while not happened():  # noqa: ASYNC110 -- nothing to wait on
            await asyncio.sleep(0.001)


async def metrics(client: aiohttp.ClientSession) -> dict[str, float]:
    """Values by name, and by name and any label that tells series of one name apart."""
    async with client.get("/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    seen = {}
    for sample in (sample for family in families for sample in family.samples):
        own = [f' {k}="{v}"' for k, v in sample.labels.items() if k in ("source", "finished_reason", "reason")]
        seen["".join([sample.name, *own])] = sample.value
    return seen
