"""The router before four real vLLM replicas: what it believes is what they hold, and what it predicts they deliver."""

import asyncio
import json
import logging
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.check import asked_all
from router.isolation import PATHS, paired
from router.kv_standing import EXACT
from router.openai import CHAT, COMPLETIONS
from router.probes import session
from router.prompts import LocalReader
from tests.fakes import until
from tests.real_vllm.engines import BLOCK_TOKENS, Engine, Engines
from tests.real_vllm.listener import Listener
from tests.real_vllm.routed import PATIENCE_S, Routed, routed
from tests.real_vllm.traffic import Traffic
from tests.tenanted import ALPHA, BETA, SECRET, tenants_text

_log = logging.getLogger("tests.real_vllm")
Listeners = dict[str, Listener]


async def sequential(found: Routed, traffic: Traffic, count: int, *, quiet_every: int = 0) -> list[dict[str, Any]]:
    """One request after another, all of them answered; what the router said of each."""
    begun = len(found.outcomes)
    for number in range(1, count + 1):
        route, body = traffic.next()
        status, answer = await found.post(route, body)
        assert status == 200, answer
        traffic.answered(answer)
        if quiet_every and number % quiet_every == 0:
            await found.quiet()
    return found.outcomes[begun:]


def share_predicted(outcomes: list[dict[str, Any]], what: str, measured: list[str]) -> float:
    """The share of requests whose cached tokens were predicted to the token, of those where the engine said them."""
    outcomes = [told for told in outcomes if told["delivered_tokens"] is not None]
    wrong = [told for told in outcomes if told["predicted_tokens"] != told["delivered_tokens"]]
    cached = sum(told["delivered_tokens"] for told in outcomes)
    prompt = sum(told["prompt_tokens"] for told in outcomes)
    right = f"{len(outcomes) - len(wrong)} of {len(outcomes)} requests predicted to the token"
    measured.append(f"{what}: {right}; {cached} of {prompt} prompt tokens were cached")
    for told in wrong:
        _log.warning("predicted otherwise: %s", told)
    return 1 - len(wrong) / len(outcomes)


def answered(reply: bytes) -> str:
    """The text of a chat's reply, streamed or whole."""
    if reply.startswith(b"{"):
        return str(json.loads(reply)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in reply.splitlines() if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def test_tokens_and_hashes_are_exact(engines: Engines, listeners: Listeners) -> None:
    async with routed(engines, listeners) as found:
        traffic = Traffic(1)
        (root,) = found.up.gateway.models.roots
        reader = found.up.readers.of(root)
        assert isinstance(reader, LocalReader)
        for _ in range(20):
            route, body = traffic.next()
            wanted = None if route not in (CHAT, COMPLETIONS) or body.get("stream") else reader.token_ids(route, body)
            status, answer = await found.post(route, body | ({"return_token_ids": True} if wanted else {}))
            assert status == 200, answer
            traffic.answered(answer)
            if wanted:
                told = json.loads(answer)
                assert wanted == (told.get("prompt_token_ids") or told["choices"][0]["prompt_token_ids"])
        assert {outcome["basis"] for outcome in found.outcomes} == {"exact"}
        checkup = await asked_all(found.config, None, probe=True)
        await found.quiet()  # the probes went past the router, and it knows of them all the same
        assert all(state.standing.word == EXACT for state in found.up.events.states())
        assert checkup.fine, checkup
        assert all(one.tokens == EXACT and not one.notes for one in checkup.replicas), checkup
        proofs = [one.proof.cached_tokens for one in checkup.replicas if one.proof is not None]
        assert proofs == [(0, 1984)] * len(engines.all)
        again = await asked_all(found.config, None)
        assert all(one.cache == EXACT for one in again.replicas), again


async def test_with_events_what_is_predicted_is_delivered(
    engines: Engines, listeners: Listeners, measured: list[str]
) -> None:
    async with routed(engines, listeners) as found:
        await found.quiet()  # what was published before this router began is known by replay
        outcomes = await sequential(found, Traffic(2), 120, quiet_every=10)
        assert sum(listener.kinds["BlockRemoved"] for listener in listeners.values()) > 100
        assert share_predicted(outcomes, "with events", measured) >= 0.99


async def test_without_events_what_is_predicted_is_delivered(
    engines: Engines, listeners: Listeners, measured: list[str]
) -> None:
    async with routed(engines, listeners, kv_events="off") as found:
        outcomes = await sequential(found, Traffic(3), 120)
        assert share_predicted(outcomes, "without events", measured) >= 0.95


async def test_answers_are_known_for_the_next_turn(engines: Engines, listeners: Listeners, measured: list[str]) -> None:
    """Without events, streamed or not: what a turn generated is predicted for the next one, which repeats it."""
    async with routed(engines, listeners, kv_events="off") as found:
        (root,) = found.up.gateway.models.roots
        reader = found.up.readers.of(root)
        assert isinstance(reader, LocalReader)
        digits_and_end = reader.tokenizer.encode([*"0123456789", "<|im_end|>"])  # digits are tokens of their own
        allowed = [int.from_bytes(ids, "little") for ids in digits_and_end]
        traffic, repeated = Traffic(13), []
        for conversation in range(6):
            messages = [{"role": "system", "content": traffic.words(30)}]
            for turn in range(4):
                messages.append({"role": "user", "content": traffic.words(5)})
                body = {"model": "tiny", "messages": messages, "max_tokens": 300, "allowed_token_ids": allowed}
                body |= {"min_tokens": 40, "temperature": 1.0, "seed": 100 * conversation + turn}
                if turn % 2 == 0:
                    body |= {"stream": True, "stream_options": {"include_usage": True}}
                status, answer = await found.post(CHAT, body)
                assert status == 200, answer
                messages.append({"role": "assistant", "content": answered(answer)})
                repeated += [found.outcomes[-1]] if turn else []
        assert share_predicted(repeated, "answers, without events", measured) >= 0.95


async def test_a_burst_of_equal_prompts_stays_together(engines: Engines, listeners: Listeners) -> None:
    """They go where the first went, long before that one's events could tell, and all but it find the prompt cached."""
    async with routed(engines, listeners) as found:
        body = {"model": "tiny", "prompt": Traffic(4).words(400), "max_tokens": 4}
        answers = await asyncio.gather(*(found.post(COMPLETIONS, body) for _ in range(8)))
        assert [status for status, _ in answers] == [200] * 8
        assert len({told["replica"] for told in found.outcomes}) == 1
        prompt_tokens = found.outcomes[0]["prompt_tokens"]
        hittable = (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert sorted(told["delivered_tokens"] for told in found.outcomes) == [0] + [hittable] * 7
        await found.quiet()


async def test_tenants_share_no_cache(engines: Engines, listeners: Listeners, tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_text(tenants_text())
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    files = {"tenants.file": "tenants.toml", "tenants.salt_secret_file": "secret"}
    settings = {name: str(tmp_path / file) for name, file in files.items()}
    async with routed(engines, listeners, **settings) as found:
        body = {"model": "tiny", "messages": [{"role": "user", "content": Traffic(8).words(80)}], "max_tokens": 2}
        for key in (ALPHA, BETA, ALPHA, BETA):
            async with found.client.post(CHAT, json=body, headers={"Authorization": f"Bearer {key}"}) as response:
                assert response.status == 200, await response.text()
            await found.quiet()
        cached = [told["delivered_tokens"] for told in found.outcomes]
        assert cached[:2] == [0, 0]
        assert cached[2] == cached[3] > 0
        assert [told["predicted_tokens"] for told in found.outcomes] == cached


@pytest.mark.parametrize("path", PATHS)
async def test_salts_keep_tenants_apart_on_every_path(engines: Engines, path: str) -> None:
    async with session(timeout_s=PATIENCE_S, key=None) as client:
        pair = await paired(client, engines.all[0].url, path, "tiny", most_tokens=1000)
    assert pair is not None
    assert (pair.word, pair.others_tokens) == ("apart", 0)


async def test_clients_that_leave(engines: Engines, listeners: Listeners) -> None:
    """The engine stops computing for them, and what it had computed is known."""
    async with routed(engines, listeners) as found:
        for stream in (True, False):
            body = {"model": "tiny", "prompt": Traffic(5).words(60), "max_tokens": 1500, "ignore_eos": True}
            asked = asyncio.ensure_future(found.post(COMPLETIONS, body | {"stream": stream}))
            engine = await serving(found)
            await runs(found, engine, 1, PATIENCE_S)
            asked.cancel()
            await runs(found, engine, 0, 2.0)
        await found.quiet()
        assert [outcome["outcome"] for outcome in found.outcomes] == ["client-left"] * 2


async def test_bursts_with_clients_that_leave(engines: Engines, listeners: Listeners) -> None:
    """Many at once, more than the caches hold, some gone before their end: at rest the index is right all the same."""
    async with routed(engines, listeners) as found:
        traffic, draw = Traffic(6), random.Random(6)
        for _ in range(4):
            asked = [impatient(found, traffic.next(), draw.choice([0.05, 0.3, 60, 60, 60])) for _ in range(24)]
            assert set(await asyncio.gather(*asked)) <= {200, None}
            await found.quiet()
        assert {outcome["outcome"] for outcome in found.outcomes} == {"ok", "client-left"}


async def test_a_replica_that_is_killed_and_comes_back(
    engines: Engines, listeners: Listeners, measured: list[str]
) -> None:
    """Lost are the streams it was in the middle of and nothing else; it is forgotten, and used again."""
    async with routed(engines, listeners) as found:
        traffic = Traffic(7)
        await sequential(found, traffic, 20)
        body = {"model": "tiny", "max_tokens": 400, "stream": True, "ignore_eos": True}
        prompts = [{"prompt": traffic.words(9)} for _ in range(6)]
        streams = [asyncio.ensure_future(found.post(COMPLETIONS, body | prompt)) for prompt in prompts]
        lost, running = await settled(found, len(streams))
        begun = len(found.outcomes)
        engines.kill(lost)
        await sequential(found, traffic, 20)
        ended = await asyncio.gather(*streams, return_exceptions=True)
        cut = [told for told in found.outcomes[begun:] if told["outcome"] != "ok"]
        assert {(told["replica"], told["outcome"]) for told in cut} == {(lost.name, "cut")}
        assert len(cut) == running == sum(isinstance(answer, aiohttp.ClientPayloadError) for answer in ended)
        engines.start(lost)
        await until(lambda: found.up.fleet.is_open(lost.name), PATIENCE_S)
        await until(lambda: not found.up.fleet.held_blocks(lost.name), PATIENCE_S)
        again = await sequential(found, traffic, 40, quiet_every=10)
        assert lost.name in {told["replica"] for told in again}
        assert share_predicted(again, "after a restart", measured) >= 0.99
        assert listeners[lost.name].restarts == 1


async def serving(found: Routed) -> Engine:
    """The replica that a request is on its way to."""
    load = found.up.fleet.load
    await until(lambda: any(load(engine.name)[0] for engine in found.engines.all), PATIENCE_S)
    return next(engine for engine in found.engines.all if load(engine.name)[0])


async def settled(found: Routed, streams: int) -> tuple[Engine, int]:
    """A replica that runs what is on its way to it, and how many that are, once so many streams are on their way.

    A busy machine may have one seem to hang, and its streams move.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            load = {engine.name: found.up.fleet.load(engine.name)[0] for engine in found.engines.all}
            lost = await serving(found)
            told = await found.engine(lost)
            if sum(load.values()) == streams and load[lost.name] == told.running:
                return lost, told.running
            await asyncio.sleep(0.02)


async def runs(found: Routed, engine: Engine, wanted: int, within_s: float) -> None:
    """Return when the engine says that it runs so many requests."""
    async with asyncio.timeout(within_s):
        while (await found.engine(engine)).running != wanted:  # noqa: ASYNC110 -- it is only told when asked
            await asyncio.sleep(0.02)


async def impatient(found: Routed, asked: tuple[str, dict[str, Any]], patience_s: float) -> int | None:
    """The status, or None for a client that left before its reply had ended."""
    try:
        async with asyncio.timeout(patience_s):
            return (await found.post(*asked))[0]
    except TimeoutError:
        return None
