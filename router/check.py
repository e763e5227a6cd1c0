"""`router check`: asks every replica the questions whose answers decide whether routing can work.

The one rule: a problem is something that makes requests fail or makes the router blind, told with its remedy; a note
is something to know. Not here: printing, and watching over time (`health`).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from router.config import Config, ReplicaAddress
from router.engine_metrics import EngineMetrics, parse
from router.errors import UsageError
from router.kv_follow import standings
from router.kv_standing import APPROXIMATE
from router.models import cards
from router.parity import parity
from router.probes import ProbeError, answer, model_entries, session
from router.readers import reader_for
from router.templates import TemplateError
from router.tokenizers import TokenizerError

_EVENTS_S = 2.0


@dataclass(slots=True)
class Checked:
    """What one replica answered."""

    name: str
    url: str
    models: list[str] = field(default_factory=list)
    root: str = ""
    max_model_tokens: int | None = None
    block_tokens: int | None = None
    capacity_blocks: int | None = None
    hash_algorithm: str | None = None
    tokens: str = ""
    """`EXACT` or `APPROXIMATE`; empty when it was not compared."""
    tokens_reason: str = ""
    cache: str = ""
    """`EXACT`, `ALIAS` or `APPROXIMATE`: how well its cache is known; empty when it was not looked at."""
    cache_reason: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checkup:
    """The whole fleet."""

    replicas: list[Checked]
    problems: list[str]
    """Of the fleet as such, not of one replica."""

    @property
    def fine(self) -> bool:
        return not self.problems and not any(replica.problems for replica in self.replicas)


def check(config: Config, environment: Mapping[str, str]) -> Checkup:
    """Ask all replicas at once."""
    return asyncio.run(asked_all(config, config.replica_key(environment)))


async def asked_all(config: Config, key: str | None) -> Checkup:
    """The same, from within an event loop and with the key at hand."""
    async with session(timeout_s=config.health.timeout_s, key=key) as client:
        replicas = await asyncio.gather(*(_checked(config, replica, client) for replica in config.replicas))
        await _events(config, replicas, client)
    return Checkup(list(replicas), _differences(replicas))


async def _checked(config: Config, replica: ReplicaAddress, client: aiohttp.ClientSession) -> Checked:
    found = Checked(replica.name, replica.url)
    try:
        status, _ = await answer(client, replica.url, "/health")
        if status != 200:
            found.problems.append(f"answered {status} to /health; it gets no requests until that is 200")
            return found
        await _models(found, client)
        await _metrics(found, config.block_tokens, client)
        if found.models:
            await _tokens(found, config, client)
    except ProbeError as error:
        found.problems.append(f"{error}; is it running, and is {replica.url} its address?")
    return found


async def _models(found: Checked, client: aiohttp.ClientSession) -> None:
    status, body = await answer(client, found.url, "/v1/models")
    if status in (401, 403):
        found.problems.append(f"answered {status} to /v1/models; set replica_key_env to a variable with its API key")
        return
    entries = model_entries(body) if status == 200 else None
    if not entries:
        found.problems.append("tells no models at /v1/models; requests for any model will be sent to it")
        return
    known = cards(entries)
    base = next((card for card in known if not card.adapter), known[0])
    found.models = [card.id for card in known]
    found.root, found.max_model_tokens = base.root, base.max_model_tokens


async def _metrics(found: Checked, block_tokens: int, client: aiohttp.ClientSession) -> None:
    status, body = await answer(client, found.url, "/metrics")
    engine = parse(body.decode("utf-8", "replace")) if status == 200 else EngineMetrics()
    found.block_tokens, found.capacity_blocks = engine.block_tokens, engine.capacity_blocks
    found.hash_algorithm = engine.hash_algorithm
    if engine.prefix_caching is False:
        found.problems.append("runs with prefix caching off; start vLLM with --enable-prefix-caching")
    if engine.capacity_blocks is None:
        found.notes.append("does not tell the size of its cache; give replicas.capacity_blocks in the configuration")
    if engine.block_tokens is not None and engine.block_tokens % block_tokens:
        found.problems.append(
            f"caches blocks of {engine.block_tokens} tokens, which is no multiple of block_tokens = {block_tokens};"
            f" run the router with --set block_tokens={engine.block_tokens}"
        )


async def _tokens(found: Checked, config: Config, client: aiohttp.ClientSession) -> None:
    """Compare the router's reader with this replica's `/tokenize`."""

    async def ask(path: str, body: Any) -> Any:
        try:
            async with client.post(found.url + path, json=body) as response:
                if response.status != 200:
                    raise ConnectionError(f"{path} answered {response.status}")
                return await response.json(content_type=None)
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{path}: {type(error).__name__}") from error

    wanted = config.tokenizer
    try:
        picked = await asyncio.to_thread(
            reader_for,
            found.root,
            tokenizer=wanted.path,
            where=wanted.where,
            ask=ask,
            block_tokens=config.block_tokens,
            cache_bytes=config.limits.prompt_cache_bytes,
        )
    except (TokenizerError, TemplateError) as error:
        raise UsageError(f"tokenizer.path: {error}") from error
    told = await parity(picked.reader, ask, found.models[0])
    found.tokens, found.tokens_reason = told.word, told.reason
    if told.different:
        found.problems.append(f"tokenizes otherwise than {picked.reader.describe()}: {told.reason}; check --tokenizer")
    elif not told.exact:
        found.notes.append(f"gets approximate prompts: {told.reason} ({picked.reason}); give --tokenizer FOLDER")


async def _events(config: Config, replicas: list[Checked], client: aiohttp.ClientSession) -> None:
    """What KV events tell of each replica's cache."""
    roots = {found.name: found.root for found in replicas if found.root}
    seen = await standings(config, roots, client, within_s=_EVENTS_S)
    for found in replicas:
        standing = seen.get(found.name)
        if standing is None:
            continue
        found.cache, found.cache_reason = standing.word, standing.reason
        if standing.word == APPROXIMATE:
            found.notes.append(f"{standing.reason}; its cache is known by what is sent to it")
        if standing.degraded:
            found.notes.append(f"has KV events that are incomplete: {standing.degraded}")


def _differences(replicas: list[Checked] | tuple[Checked, ...]) -> list[str]:
    """Settings in which replicas of one model must agree, and do not."""
    told = []
    for model in sorted({model for replica in replicas for model in replica.models}):
        serving = [replica for replica in replicas if model in replica.models]
        for what in ("root", "block_tokens", "max_model_tokens"):
            differ = {str(getattr(replica, what)): replica.name for replica in serving}
            if len(differ) > 1:
                listed = ", ".join(f"{value} on {name}" for value, name in sorted(differ.items()))
                told.append(f"replicas that serve {model} differ in {what}: {listed}; start them alike")
    return told
