"""A whole router over emulated replicas that publish: what it believes is what they hold, and it says so."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from router.app import running
from router.check import asked_all
from router.config import load
from router.kv_standing import EXACT
from router.openai import CHAT
from router.readers import TINY, local_reader
from sim import emulator
from sim.cost import DEFAULT_PROFILE, PROFILES
from tests.fakes import until

BLOCKS = 120
SYSTEM = "You are a careful assistant who answers in short sentences. " * 4


@asynccontextmanager
async def fleet(block_tokens=16, **settings):
    """A router over two emulated replicas that publish their events, and those."""
    reader = local_reader(TINY, block_tokens=16)
    async with AsyncExitStack() as stack:
        replicas = []
        for name in ("r1", "r2"):
            replica = await emulator.start(
                "127.0.0.1",
                0,
                name=name,
                model="tiny",
                blocks=BLOCKS,
                block_tokens=block_tokens,
                profile=PROFILES[DEFAULT_PROFILE],
                speed=1000.0,
                tokenize=reader.token_ids,
                detokenize=reader.tokenizer.decode,
                kv_events=0,
            )
            stack.push_async_callback(replica.close)
            replicas.append(replica)
        flags = {"listen.port": 0, "admin.port": 0, "tokenizer.path": str(TINY), "policy.name": "round-robin"}
        flags |= {"replicas": ",".join(replica.url for replica in replicas)} | settings
        config, _ = load(flags={name: ("test", value) for name, value in flags.items()})
        up = await stack.enter_async_context(running(config))
        await up.readers.ready()
        client = await stack.enter_async_context(aiohttp.ClientSession(up.url))
        yield up, replicas, config, client


async def said(client, *messages, **members):
    body = {"model": "tiny", "messages": list(messages), "max_tokens": 20, **members}
    async with client.post(CHAT, json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
    return answer["choices"][0]["message"], answer["usage"]


def user(text):
    return {"role": "user", "content": text}


def held(up):
    return [up.fleet.held_blocks(name) for name in up.fleet.replicas()]


def metric(up, name):
    lines = up.metrics.exposition().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name if "{" in name else name + "{"))


@pytest.mark.parametrize("block_tokens", [8, 16, 32])
async def test_the_index_holds_what_the_replicas_hold(block_tokens):
    """Conversations under pressure: replicas evict, and the index forgets the same blocks."""
    async with fleet(block_tokens) as (up, replicas, _, client):
        for number in range(30):
            history = [{"role": "system", "content": SYSTEM}, user(f"question {number}? " * 30)]
            for turn in range(2):
                answer, _ = await said(client, *history)
                history += [answer, user(f"and {turn}?")]
        await until(lambda: all(state.standing.word == EXACT for state in up.events.states()))
        for name, replica in zip(("r1", "r2"), replicas, strict=True):
            keys = replica.engine.cache.cached_keys
            assert keys > BLOCKS // 2
            # Blocks of 32 tokens that agree in the first 16 share one of the router's, and one of 8 alone makes none.
            least, most = (keys, keys) if block_tokens == 16 else (keys // 3, keys * block_tokens // 16 + keys // 4)
            await until(lambda name=name, least=least, most=most: least <= up.fleet.held_blocks(name) <= most)
        assert metric(up, 'router_kv_blocks_total{kind="removed"') > 0
        assert metric(up, "router_kv_faults_total") == 0
        assert metric(up, "router_kv_degraded") == 0


async def test_what_is_predicted_is_delivered():
    async with fleet() as (up, replicas, _, client):
        for number in range(20):
            await said(client, {"role": "system", "content": SYSTEM}, user(f"question {number % 5}"))
            await until(lambda: held(up) == [replica.engine.cache.cached_keys for replica in replicas])
        assert metric(up, "router_delivered_tokens_total") > 0
        assert metric(up, "router_predicted_tokens_total") == metric(up, "router_delivered_tokens_total")


@pytest.mark.parametrize("kv_events", ["auto", "off"])
async def test_salts_that_clients_bring_keep_their_prompts_apart(kv_events):
    """Seen with vLLM 0.32: the prompt of one salt is not found under another, nor without one."""
    async with fleet(kv_events=kv_events, **{"policy.name": "prefix-aware"}) as (up, replicas, _, client):
        found = []
        for salt in ("blue", None, "red", "blue", None, "red"):
            members = {} if salt is None else {"cache_salt": salt}
            _, usage = await said(client, {"role": "system", "content": SYSTEM}, user("why?"), **members)
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
            delivered = metric(up, "router_delivered_tokens_total")
            assert metric(up, "router_predicted_tokens_total") == delivered == sum(found)
            keys = [replica.engine.cache.cached_keys for replica in replicas]
            await until(lambda keys=keys: kv_events == "off" or held(up) == keys)
        assert found[:3] == [0, 0, 0]
        assert min(found[3:]) > 0


async def test_what_one_of_several_samples_found_is_no_delivery():
    """vLLM 0.32 tells of a new prompt with n=2 that 224 of its 229 tokens were cached: its other sample stored them."""
    async with fleet() as (up, _, _, client):
        _, usage = await said(client, user("a question of more than one block, asked for two replies"), n=2)
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0
        assert metric(up, "router_delivered_tokens_total") == metric(up, "router_predicted_tokens_total") == 0


async def test_check_says_how_well_each_cache_is_known():
    async with fleet() as (_, replicas, config, _):
        found = (await asked_all(config, None)).replicas
        known = (EXACT, "block hashes are sha256 with vLLM's own seed")
        assert [(one.cache, one.cache_reason) for one in found] == [known] * len(replicas)


async def test_off():
    async with fleet(kv_events="off") as (up, _, _, client):
        await said(client, user("hello"))
        assert [state.standing.reason for state in up.events.states()] == ["kv_events is off"] * 2
        assert metric(up, "router_kv_batches_total") == 0


def test_it_runs_under_uvloop():
    uvloop = pytest.importorskip("uvloop")

    async def life():
        async with fleet() as (up, _, _, client):
            for number in range(4):
                await said(client, {"role": "system", "content": SYSTEM}, user(f"question {number}"))
            await until(lambda: all(state.standing.word == EXACT for state in up.events.states()))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(life())
