"""`router check` against replicas that answer as told."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from router import check
from router.check import Checkup, asked_all
from router.config import load
from router.readers import TINY, local_reader, reader_for

READER = local_reader(TINY, block_tokens=16)
METRICS = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="100",enable_prefix_caching="True"} 1.0\n'


class Told:
    """What a replica answers."""

    def __init__(self, **changes: object) -> None:
        self.health, self.models_status, self.metrics, self.root = 200, 200, METRICS, "/models/tiny"
        self.models: list[dict[str, object]] = [{"id": "tiny", "root": str(TINY), "max_model_len": 2048}]
        self.shift, self.tokenizes = 0, True
        self.version, self.details, self.cached = "0.32.0", True, None
        self.asked: list[list[int]] = []
        for name, value in changes.items():
            setattr(self, name, value)


@asynccontextmanager
async def serving(told: Told) -> AsyncIterator[str]:
    async def health(_: web.Request) -> web.Response:
        return web.Response(status=told.health)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": told.models}, status=told.models_status)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=told.metrics)

    async def tokenize(request: web.Request) -> web.Response:
        if not told.tokenizes:
            return web.Response(status=404)
        body = await request.json()
        ids = READER.token_ids("/v1/chat/completions" if "messages" in body else "/v1/completions", body)
        return web.json_response({"tokens": [token + told.shift for token in ids]})

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": told.version}, status=200 if told.version else 404)

    async def completions(request: web.Request) -> web.Response:
        """Caches whole prompts, less their last block; or finds what it is told to."""
        prompt = (await request.json())["prompt"]
        found = (len(prompt) - 1) // 32 * 32 if prompt in told.asked else 0
        told.asked.append(prompt)
        details = {"cached_tokens": found if told.cached is None else told.cached} if told.details else None
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": details}
        chunks = ({"choices": [{"text": "x"}]}, {"choices": [], "usage": usage})
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        return web.Response(text=text + "data: [DONE]\n\n", content_type="text/event-stream")

    application = web.Application()
    application.router.add_get("/version", version)
    application.router.add_post("/v1/completions", completions)
    application.router.add_get("/health", health)
    application.router.add_get("/v1/models", models)
    application.router.add_get("/metrics", metrics)
    application.router.add_post("/tokenize", tokenize)
    async with TestServer(application, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}"


async def checked(*tolds: Told, sets: tuple[str, ...] = (), probe: bool = False) -> Checkup:
    if not tolds:
        config, _ = load(sets=sets)
        return await asked_all(config, None, probe=probe)
    async with serving(tolds[0]) as url:
        listed = next((text for text in sets if text.startswith("replicas=")), "replicas=")
        grown = f"{listed}{url},"
        return await checked(*tolds[1:], sets=(*(text for text in sets if text != listed), grown), probe=probe)


async def test_a_replica_that_is_fine():
    checkup = await checked(Told())
    assert checkup.fine
    found = checkup.replicas[0]
    assert (found.models, found.block_tokens, found.capacity_blocks) == (["tiny"], 32, 100)
    assert (found.tokens, found.problems, found.cache) == ("EXACT", [], "APPROXIMATE")
    assert [note[:30] for note in found.notes] == ["does not tell of KV events (ol"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"health": 503}, "answered 503 to /health"),
        ({"models_status": 401}, "set replica_key_env"),
        ({"models_status": 404}, "tells no models"),
        ({"models": []}, "tells no models"),
        ({"metrics": METRICS.replace("True", "False")}, "--enable-prefix-caching"),
        ({"metrics": METRICS.replace("32", "24")}, "--set block_tokens=24"),
        ({"shift": 1}, "tokenizes otherwise than tiny"),
        ({"details": False}, "--enable-prompt-tokens-details"),
    ],
)
async def test_problems_come_with_their_remedy(changes, problem):
    checkup = await checked(Told(**changes))
    assert not checkup.fine
    assert problem in " ".join(checkup.replicas[0].problems)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"metrics": ""}, "replicas.capacity_blocks"),
        ({"tokenizes": False}, "gets approximate prompts"),
        ({"metrics": METRICS + 'vllm:external_prefix_cache_queries_total{engine="0"} 640.0\n'}, "a KV connector"),
        ({"details": False, "version": "0.22.1"}, "tells only of hits; router check --probe"),
    ],
)
async def test_notes_are_no_problems(changes, note):
    checkup = await checked(Told(**changes))
    assert checkup.fine
    assert note in " ".join(checkup.replicas[0].notes)


async def test_a_replica_nobody_reaches():
    checkup = await checked(sets=(f"replicas=127.0.0.1:{unused_port()}",))
    assert "refused the connection; is it running" in checkup.replicas[0].problems[0]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda told: setattr(told, "metrics", METRICS.replace("32", "16")), "16 on r2, 32 on r1; start them with"),
        (lambda told: setattr(told, "shift", 1), "differ in template"),
        (lambda told: told.models[0].update(max_model_len=4096), "max_model_tokens: 2048 on r1, 4096 on r2"),
        (lambda told: told.models[0].update(root="/other"), "differ in root"),
    ],
)
async def test_replicas_of_one_model_must_agree(change: Callable[[Told], None], what: str):
    other = Told()
    change(other)
    checkup = await checked(Told(), other)
    assert not checkup.fine
    assert what in " ".join(checkup.problems)


async def test_of_many_the_odd_one_is_told():
    odd = Told(version="0.33.0")
    checkup = await checked(Told(), odd, Told(), Told())
    assert "differ in version: 0.32.0 on r1 and 2 more, 0.33.0 on r2; run" in " ".join(checkup.notes)


async def test_a_cache_that_is_off_is_one_problem():
    checkup = await checked(Told(metrics=METRICS.replace("True", "False")))
    (found,) = checkup.replicas
    assert found.problems == ["runs with prefix caching off; start vLLM with --enable-prefix-caching"]
    assert (found.cache, found.cache_reason, found.notes) == ("APPROXIMATE", "runs with prefix caching off", [])


async def test_a_tokenizer_is_loaded_once_for_all_replicas_of_a_model(monkeypatch):
    """Seen with Qwen3's: 300 MB for each of four replicas."""
    loaded = []
    monkeypatch.setattr(check, "reader_for", lambda root, **how: loaded.append(root) or reader_for(root, **how))
    checkup = await checked(Told(), Told(), Told())
    assert [found.tokens for found in checkup.replicas] == ["EXACT"] * 3
    assert len(loaded) == 1


async def test_replicas_of_different_models_may_differ():
    other = Told(metrics=METRICS.replace("32", "16"))
    other.models[0]["id"] = "another"
    assert (await checked(Told(), other)).problems == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda told: setattr(told, "version", "0.33.0"), "differ in version: 0.32.0 on r1, 0.33.0 on r2"),
        (
            lambda told: setattr(told, "metrics", METRICS.replace("} 1", ',prefix_caching_hash_algo="xxhash"} 1')),
            "--prefix-caching-hash-algo",
        ),
    ],
)
async def test_other_differences_are_noted(change: Callable[[Told], None], what: str):
    first, other = Told(), Told()
    first.metrics = METRICS.replace("} 1", ',prefix_caching_hash_algo="sha256"} 1')
    other.metrics = first.metrics
    change(other)
    checkup = await checked(first, other)
    assert checkup.problems == []
    assert what in " ".join(checkup.notes)


async def test_what_a_replica_does_not_tell_is_no_difference():
    assert (await checked(Told(version="", metrics="", tokenizes=False), Told())).problems == []


async def test_a_probe_sends_a_fresh_prompt_twice_and_shows_both():
    first, second = Told(), Told()
    checkup = await checked(first, second, probe=True)
    assert checkup.fine
    proofs = [found.proof for found in checkup.replicas]
    assert [(proof.prompt_tokens, proof.cached_tokens) for proof in proofs] == [(2000, (0, 1984))] * 2
    assert all(0 < seconds < 60 for proof in proofs for seconds in proof.ttft_s)
    assert "2000 fresh tokens twice: first token after" in proofs[0].shown()
    long = [prompt for told in (first, second) for prompt in told.asked if len(prompt) == 2000]
    assert long[0] == long[1] != long[2] == long[3]


async def test_a_probe_fits_the_model():
    told = Told()
    told.models[0]["max_model_len"] = 100
    checkup = await checked(told, probe=True)
    assert checkup.replicas[0].proof.prompt_tokens == 98


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cached": 0}, "found nothing cached of a prompt sent twice; start vLLM with --enable-prefix-caching"),
        ({"details": False}, "told no cached tokens of a prompt sent twice"),
    ],
)
async def test_a_probe_shows_that_nothing_is_cached(changes, problem):
    checkup = await checked(Told(**changes), probe=True)
    assert problem in " ".join(checkup.replicas[0].problems)


async def test_a_probe_that_finds_part_of_it_is_noted():
    checkup = await checked(Told(cached=320), probe=True)
    assert "found only 320 of 2000 tokens" in " ".join(checkup.replicas[0].notes)


async def test_without_a_probe_a_few_tokens_are_sent_once():
    told = Told()
    await checked(told)
    assert [len(prompt) for prompt in told.asked] == [4]
