"""What is measured: the server's model and adapter, a fingerprint of its template, its version and cache counters.

The one rule: what can't be learnt is None and stops nothing but the model's name, without which nothing can be asked.
Not here: the load.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from router.engine_metrics import parse
from router.errors import RouterError
from router.probes import ProbeError, answer, model_entries

_PROBE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is a prefix cache?"},
    {"role": "assistant", "content": "A store of KV blocks."},
    {"role": "user", "content": "And why?"},
]


@dataclass(frozen=True, slots=True)
class About:
    """One server, before it is measured."""

    url: str
    model: str
    root: str | None
    """What the server calls the model's source, such as a hub name."""
    adapter_of: str | None
    """The base model, when `model` is an adapter's name."""
    template: str | None
    """Hash of a probe chat's token ids, so that two templates or tokenizers are told apart."""
    version: str | None


@dataclass(frozen=True, slots=True)
class Counted:
    """The engines' prefix-cache counters at one time, all engines together."""

    queried_tokens: int
    hit_tokens: int

    def since(self, earlier: "Counted") -> "Counted | None":
        """The difference; None when an engine started over in between."""
        queried, hit = self.queried_tokens - earlier.queried_tokens, self.hit_tokens - earlier.hit_tokens
        return Counted(queried, hit) if queried >= 0 and hit >= 0 else None


async def about(client: aiohttp.ClientSession, url: str, model: str) -> About:
    """Ask the server. Raises `RouterError` when it does not answer, or serves no such model."""
    try:
        status, told = await answer(client, url, "/v1/models")
    except ProbeError as error:
        raise RouterError(f"{url} {error}") from None
    entries = model_entries(told) if status == 200 else None
    if status in (401, 403):
        raise RouterError(f"{url} answers {status} to /v1/models; name the variable with its key: --api-key-env NAME")
    card = _card(url, entries or [], model)
    name = card["id"]
    root, parent = card.get("root"), card.get("parent")
    return About(
        url=url,
        model=name,
        root=root if isinstance(root, str) else None,
        adapter_of=parent if isinstance(parent, str) else None,
        template=await _template(client, url, name),
        version=await _version(client, url),
    )


def _card(url: str, entries: Sequence[dict[str, Any]], model: str) -> dict[str, Any]:
    if not model and not entries:
        raise RouterError(f"{url} does not say which models it serves; name one with --model")
    if not model:
        return entries[0]
    names = [str(entry["id"]) for entry in entries]
    if entries and model not in names:
        shown = ", ".join(names[:8])
        raise RouterError(f"{url} does not serve the model {model!r}; it serves {shown}")
    return next((entry for entry in entries if entry["id"] == model), {"id": model})


async def counted(client: aiohttp.ClientSession, urls: Sequence[str]) -> Counted | None:
    """The counters of these engines together; None when one of them does not tell."""
    queried = hit = 0
    for url in urls:
        try:
            status, text = await answer(client, url, "/metrics")
        except ProbeError:
            return None
        told = parse(text.decode("utf-8", "replace"))
        if status != 200 or told.queried_tokens_total is None or told.hit_tokens_total is None:
            return None
        queried, hit = queried + told.queried_tokens_total, hit + told.hit_tokens_total
    return Counted(queried, hit) if urls else None


async def _template(client: aiohttp.ClientSession, url: str, model: str) -> str | None:
    body = {"model": model, "messages": _PROBE, "add_generation_prompt": True}
    try:
        async with client.post(f"{url}/tokenize", json=body, allow_redirects=False) as response:
            told = await response.read()
            tokens = orjson.loads(told).get("tokens") if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, AttributeError):
        return None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return None
    return hashlib.sha256(orjson.dumps(tokens)).hexdigest()[:16]


async def _version(client: aiohttp.ClientSession, url: str) -> str | None:
    try:
        status, told = await answer(client, url, "/version")
        version = orjson.loads(told)["version"] if status == 200 else None
    except (ProbeError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) else None
