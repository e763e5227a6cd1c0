"""`router check`: asks every replica the questions whose answers decide whether routing can work.

The one rule: a problem is something that makes requests fail or makes the router blind, told with its remedy; a note
is something to know. Not here: printing, and watching over time (`health`).
"""

import asyncio
import hashlib
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from router.cache_proof import Proof, proved, tells_cached
from router.config import Config
from router.discovery import Discovery
from router.engine_metrics import EngineMetrics, parse
from router.errors import UsageError
from router.kv_check import Listened, listened
from router.kv_standing import APPROXIMATE
from router.models import cards
from router.parity import PROBES, Ask, parity
from router.probes import ProbeError, answer, model_entries, server_of, session
from router.ranks import Ranks, rank_of
from router.readers import Picked, reader_for
from router.sections import ReplicaAddress
from router.templates import TemplateError
from router.tls import host_of, towards, towards_all
from router.tokenizers import TokenizerError

_TELLS_MISSES = (0, 25)
"""The vLLM version since which a miss is told as 0 cached tokens; older ones say nothing then."""
_UNCACHED = "runs with prefix caching off"
_DETAILS = "start vLLM with --enable-prompt-tokens-details"
_PROBLEMS = {
    "root": "start them with the same --model and --revision",
    "template": "start them with the same --chat-template and --tokenizer",
    "block_tokens": "start them with the same --block-size",
    "max_model_tokens": "start them with the same --max-model-len",
}
"""What must be alike in replicas of one model, and the remedy."""
_NOTES = {
    "hash_algorithm": "start them with the same --prefix-caching-hash-algo",
    "version": "run the same vLLM: templates, hashes and events change between versions",
}


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
    version: str = ""
    template: str = ""
    """A digest of its tokens for one chat; empty where it does not tokenize."""
    proof: Proof | None = None
    """What the same prompt sent twice showed, where that was asked for."""
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
    notes: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        return not self.problems and not any(replica.problems for replica in self.replicas)


def check(config: Config, environment: Mapping[str, str], *, probe: bool = False) -> Checkup:
    """Ask all replicas at once; `probe` sends each a fresh prompt twice, to prove that it caches."""
    return asyncio.run(asked_all(config, config.replica_key(environment), probe=probe))


async def asked_all(config: Config, key: str | None, *, probe: bool = False) -> Checkup:
    """The same, from within an event loop and with the key at hand."""
    contexts: dict[str, ssl.SSLContext] = {}
    async with session(timeout_s=config.health.timeout_s, key=key, tls=towards_all(contexts)) as client:
        ranks = Ranks(config.data_parallel_ranks, partial(answer, client))
        file = Path(config.replicas_file) if config.replicas_file else None
        found = await Discovery(config.replicas, file, split=ranks.split).found()
        config = config.model_copy(update={"replicas": tuple(chain.from_iterable(found.values()))})
        for replica in config.replicas:
            tls = towards(replica, config.replica_tls)
            if tls is not None:
                contexts[host_of(replica.url)] = tls
        readers = _Readers(config)
        replicas = await asyncio.gather(*(_checked(config, replica, client, readers) for replica in config.replicas))
        await _events(config, replicas, client)
        if probe:
            await asyncio.gather(*(_proved(found, client) for found in replicas))
    return Checkup(list(replicas), _differences(replicas, _PROBLEMS), _differences(replicas, _NOTES))


class _Readers:
    """The reader of each model, loaded once however many replicas serve it: a large tokenizer takes 300 MB."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loading: dict[str, asyncio.Future[Picked]] = {}

    async def of(self, root: str, ask: Ask) -> Picked:
        """Raises `UsageError`."""
        wanted = self._config.tokenizer
        if root not in self._loading:
            load = partial(
                reader_for,
                root,
                tokenizer=wanted.path,
                where=wanted.where,
                ask=ask,
                block_tokens=self._config.block_tokens,
                cache_bytes=self._config.limits.prompt_cache_bytes,
            )
            self._loading[root] = asyncio.ensure_future(asyncio.to_thread(load))
        try:
            return await self._loading[root]
        except (TokenizerError, TemplateError) as error:
            raise UsageError(f"tokenizer.path: {error}") from error


async def _checked(
    config: Config, replica: ReplicaAddress, client: aiohttp.ClientSession, readers: _Readers
) -> Checked:
    found = Checked(replica.name, replica.url)
    try:
        status, _ = await answer(client, replica.url, "/health")
        if status != 200:
            found.problems.append(f"answered {status} to /health; it gets no requests until that is 200")
            return found
        await _models(found, client)
        await _metrics(found, config.block_tokens, client)
        await _version(found, client)
        if found.models:
            await _tokens(found, readers, client)
            await _usage(found, client)
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
    engine = parse(body.decode("utf-8", "replace"), rank_of(found.url)) if status == 200 else EngineMetrics()
    found.block_tokens, found.capacity_blocks = engine.block_tokens, engine.capacity_blocks
    found.hash_algorithm = engine.hash_algorithm
    if engine.prefix_caching is False:
        found.problems.append(f"{_UNCACHED}; start vLLM with --enable-prefix-caching")
        found.cache, found.cache_reason = APPROXIMATE, _UNCACHED
    if engine.external_tokens_total:
        found.notes.append(
            "reads a cache outside the engine (a KV connector); such a cache may ignore salts and show one tenant what"
            " another sent: see that it keeps them apart, or run it without"
        )
    if engine.capacity_blocks is None:
        found.notes.append("does not tell the size of its cache; give replicas.capacity_blocks in the configuration")
    if engine.block_tokens is not None and engine.block_tokens % block_tokens:
        found.problems.append(
            f"caches blocks of {engine.block_tokens} tokens, which is no multiple of block_tokens = {block_tokens};"
            f" run the router with --set block_tokens={engine.block_tokens}"
        )


async def _tokens(found: Checked, readers: _Readers, client: aiohttp.ClientSession) -> None:
    """Compare the router's reader with this replica's `/tokenize`."""

    async def ask(path: str, body: Any) -> Any:
        try:
            async with client.post(server_of(found.url) + path, json=body) as response:
                if response.status != 200:
                    raise ConnectionError(f"{path} answered {response.status}")
                return await response.json(content_type=None)
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{path}: {type(error).__name__}") from error

    picked = await readers.of(found.root, ask)
    found.template = await _template(ask, found.models[0])
    told = await parity(picked.reader, ask, found.models[0])
    found.tokens, found.tokens_reason = told.word, told.reason
    if told.different:
        found.problems.append(f"tokenizes otherwise than {picked.reader.describe()}: {told.reason}; check --tokenizer")
    elif not told.exact:
        found.notes.append(f"gets approximate prompts: {told.reason} ({picked.reason}); give --tokenizer FOLDER")


async def _template(ask: Ask, model: str) -> str:
    """A digest of what a replica makes of one chat; empty when it does not say."""
    try:
        ids = (await ask("/tokenize", {**PROBES["several turns"], "model": model}))["tokens"]
        return hashlib.blake2b(orjson.dumps(ids), digest_size=4).hexdigest()
    except Exception:  # whatever it answered: there is nothing to compare
        return ""


async def _version(found: Checked, client: aiohttp.ClientSession) -> None:
    status, body = await answer(client, found.url, "/version")
    try:
        found.version = str(orjson.loads(body)["version"]) if status == 200 else ""
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return


async def _usage(found: Checked, client: aiohttp.ClientSession) -> None:
    """Ask for one token: does the usage tell of cached tokens?"""
    try:
        if await tells_cached(client, found.url, found.models[0]):
            return
    except ProbeError as error:
        found.notes.append(f"{error}; whether it tells of cached tokens is not known")
        return
    numbers = re.match(r"(\d+)\.(\d+)", found.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= _TELLS_MISSES:
        found.problems.append(f"does not tell how many tokens it found cached; {_DETAILS}")
    else:
        found.notes.append(f"runs vLLM {found.version}, which tells only of hits; router check --probe makes one")


async def _proved(found: Checked, client: aiohttp.ClientSession) -> None:
    """Send a fresh prompt twice."""
    if not found.models:
        return
    try:
        proof = await proved(client, found.url, found.models[0], most_tokens=found.max_model_tokens)
    except ProbeError as error:
        found.problems.append(f"could not be probed: {error}")
        return
    found.proof = proof
    second, block_tokens = proof.cached_tokens[1], found.block_tokens or 1
    if second is None:
        found.problems.append(f"told no cached tokens of a prompt sent twice; {_DETAILS}")
    elif second == 0:
        found.problems.append(
            "found nothing cached of a prompt sent twice; start vLLM with --enable-prefix-caching, and see that its"
            " cache is larger than its running requests"
        )
    elif second < (proof.prompt_tokens - 1) // block_tokens * block_tokens:
        found.notes.append(f"found only {second} of {proof.prompt_tokens} tokens cached right after they were sent")


async def _events(config: Config, replicas: list[Checked], client: aiohttp.ClientSession) -> None:
    """What KV events tell of each replica's cache; one that is off tells nothing."""
    asked = {
        found.name: Listened(found.root, found.models[0], found.block_tokens or config.block_tokens)
        for found in replicas
        if found.root and not found.cache
    }
    for name, heard in (await listened(config, asked, client)).items():
        found = next(one for one in replicas if one.name == name)
        found.cache, found.cache_reason = heard.cache, heard.reason
        found.problems += heard.problems
        found.notes += heard.notes


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _differences(replicas: Sequence[Checked], matters: Mapping[str, str]) -> list[str]:
    """In what replicas of one model differ; what one does not tell is no difference."""
    told = []
    for model in sorted({model for replica in replicas for model in replica.models}):
        serving = [replica for replica in replicas if model in replica.models]
        for what, remedy in matters.items():
            differ: dict[str, list[str]] = {}
            for replica in serving:
                if getattr(replica, what):
                    differ.setdefault(str(getattr(replica, what)), []).append(replica.name)
            if len(differ) > 1:
                listed = ", ".join(f"{value} on {_some(names)}" for value, names in sorted(differ.items()))
                told.append(f"replicas that serve {model} differ in {what}: {listed}; {remedy}")
    return told
