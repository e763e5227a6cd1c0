"""KV events of the emulator: bit for bit what a real engine published for the same requests, and over real sockets."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from policies.blocks import Chain
from sim.cost import PROFILES
from sim.emulator import Emulator, start
from sim.emulator_pages import Batch, Origin, Pages
from sim.jobs import Job
from sim.replica import SimReplica

RECORDINGS = Path(__file__).parent.parent / "recordings"
BLOCK = 32
BOUND_S = 5.0


def recorded(name: str) -> Any:
    return json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes()))


class Engine:
    """The pure engine with its pages, told of one request after the other."""

    def __init__(self) -> None:
        self.replica = SimReplica(
            "r1", PROFILES["llama-3.1-8b-h100"], blocks=512, block_tokens=BLOCK, record_events=True
        )
        self.pages = Pages(BLOCK)
        self.asked = 0

    def job(self, prompt: list[int], output: list[int], origin: Origin) -> Job:
        self.asked += 1
        root = Chain.root("tiny", origin.adapter, origin.salt)
        job = Job.of(str(self.asked), root, prompt, output, BLOCK)
        self.pages.opened(job.keys, prompt + output, origin)
        self.replica.submit(job)
        return job

    def batches(self, prompts: list[list[int]], outputs: list[list[int]], origin: Origin) -> list[list[Any]]:
        """Events of every step that has some, of prompts that run together."""
        jobs = [self.job(prompt, output, origin) for prompt, output in zip(prompts, outputs, strict=True)]
        told = []
        while self.replica.step() is not None:
            self.replica.finish_step()
            if events := self.pages.told(self.replica.cache.drained_events()):
                told.append(events)
        for job in jobs:
            self.pages.closed(job.keys)
        return told


def plain(events: list[Any]) -> list[Any]:
    return [msgspec.to_builtins(event) for event in events]


def test_events_of_the_recorded_requests_are_those_of_the_engine() -> None:
    engine = Engine()
    compared = 0
    for step in recorded("kv_events_int64"):
        if step["body"] is None:
            assert engine.replica.clear_cache()
            continue
        if step["name"] == "report mode full":
            continue  # re-emits what is hit, an option that the emulator has not
        body = step["body"]
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]] * body.get("n", 1)
        told = engine.batches(prompts, step["token_ids"], Origin(salt=body.get("cache_salt") or ""))
        wanted = [batch["decoded"][1] for batch in step["batches"]]
        for event in (event for batch in wanted for event in batch):
            event.pop("session_id", None)
        assert [plain(events) for events in told] == wanted, step["name"]
        compared += sum(map(len, wanted))
    assert compared > 15


def test_adapters_are_in_the_events_as_in_the_engines() -> None:
    engine = Engine()
    numbers = {"tiny": None, "sql": 1, "chat": 2}
    for step in recorded("kv_events_lora"):
        model, prompt = step["body"]["model"], step["body"]["prompt"]
        adapter = "" if numbers[model] is None else model
        origin = Origin(adapter, numbers[model], f"/adapters/{model}", step["body"].get("cache_salt") or "")
        told = engine.batches([prompt], [[1]], origin)
        wanted = [batch["decoded"][1] for batch in step["batches"]]
        for event in (event for events in wanted for event in events if adapter):
            del event["block_hashes"]  # of another adapter path
        shown = [plain(events) for events in told]
        for event in (event for events in shown for event in events if adapter):
            assert len(set(event.pop("block_hashes"))) == 2
        assert shown == wanted, step["name"]


def test_a_payload_is_the_engines_byte_for_byte() -> None:
    for step in recorded("kv_events_int64"):
        for batch in step["batches"]:
            payload = base64.b64decode(batch["payload_b64"])
            if b"session_id" not in payload:
                assert msgspec.msgpack.encode(msgspec.msgpack.decode(payload, type=Batch)) == payload


def test_pages_are_forgotten_with_the_cache_and_the_jobs() -> None:
    engine = Engine()
    for number in range(30):
        engine.batches([list(range(number, number + 3000))], [[1]], Origin())
    assert len(engine.pages) == engine.replica.cache.cached_keys <= 511
    assert engine.replica.clear_cache()
    engine.batches([[1] * BLOCK], [[1]], Origin())
    assert len(engine.pages) == 1


def test_removed_blocks_are_told_by_the_hash_they_were_stored_under() -> None:
    engine = Engine()
    held: dict[int, int] = {}
    for number in range(30):
        prompt = list(range(number, number + 3000))
        for event in (event for events in engine.batches([prompt], [[1]], Origin()) for event in plain(events)):
            change = 1 if event["type"] == "BlockStored" else -1
            for block_hash in event["block_hashes"]:
                held[block_hash] = held.get(block_hash, 0) + change
    assert set(held.values()) == {0, 1}
    assert sum(held.values()) == engine.replica.cache.cached_keys


# -- over sockets ------------------------------------------------------------------------------------------------------


async def emulated(**settings: Any) -> Emulator:
    given: dict[str, Any] = {
        "name": "r1",
        "model": "tiny",
        "blocks": 100,
        "block_tokens": 16,
        "profile": PROFILES["llama-3.1-8b-h100"],
        "speed": 500.0,
        "tokenize": lambda _route, body: list(body["prompt"].encode()),
        "detokenize": lambda ids: bytes(ids).decode("latin-1"),
        "vocabulary_tokens": 256,
        "adapters": ["sql"],
        "kv_events": 0,
    }
    return await start("127.0.0.1", 0, **(given | settings))


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    running = await emulated()
    yield running
    await running.close()


class Listener:
    """A subscriber of one emulator, and who asks it for replays."""

    def __init__(self, source: dict[str, Any]) -> None:
        self._context = zmq.asyncio.Context()
        self._topic = source["topic"].encode()
        self._out = self._context.socket(zmq.SUB)
        self._out.subscribe(self._topic)
        self._out.connect(source["endpoint"].replace("*", "127.0.0.1"))
        self._replay = self._context.socket(zmq.DEALER)
        self._replay.connect(source["replay_endpoint"].replace("*", "127.0.0.1"))

    async def batch(self) -> tuple[int, list[Any]]:
        async with asyncio.timeout(BOUND_S):
            topic, number, payload = await self._out.recv_multipart()
        assert topic == self._topic
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        return int.from_bytes(number, "big"), events

    async def replayed(self, first: int) -> list[tuple[int, list[Any]]]:
        await self._replay.send_multipart((b"", first.to_bytes(8, "big")))
        batches = []
        async with asyncio.timeout(BOUND_S):
            while True:
                blank, topic, number, payload = await self._replay.recv_multipart()
                assert blank == b""
                if number == b"\xff" * 8:
                    assert (topic, payload) == (b"", b"")
                    return batches
                assert topic == self._topic
                batches.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)[1]))

    async def malformed(self) -> None:
        for frames in ((b"",), (b"", b"x" * 9), (b"a", b"b", b"c", b"d")):
            await self._replay.send_multipart(frames)

    def close(self) -> None:
        self._context.destroy(linger=0)


async def sources(emulator: Emulator) -> dict[str, Any]:
    async with aiohttp.ClientSession(emulator.url) as client, client.get("/kv_event_sources") as response:
        assert response.status == 200
        told: dict[str, Any] = await response.json()
        return told


async def asked(emulator: Emulator, prompt: object, tokens: int = 1, model: str = "tiny", **more: Any) -> None:
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, **more}
    async with aiohttp.ClientSession(emulator.url) as client, client.post("/v1/completions", json=body) as response:
        assert response.status == 200


@pytest.fixture
async def listener(emulator: Emulator) -> AsyncIterator[Listener]:
    """Of an emulator that knows of it: batch 0 is seen by everybody through the replay."""
    listening = Listener((await sources(emulator))["0"])
    number = 0
    async with asyncio.timeout(BOUND_S):
        while True:  # a subscription takes its time to arrive
            await asked(emulator, [number] * 16, 1)
            try:
                async with asyncio.timeout(0.05):
                    seen, _ = await listening.batch()
            except TimeoutError:
                number += 1
                continue
            while seen < number:
                seen, _ = await listening.batch()
            break
    yield listening
    listening.close()


async def test_a_subscriber_hears_what_is_stored_removed_and_cleared(emulator: Emulator, listener: Listener) -> None:
    first = list(range(1000, 1040))
    await asked(emulator, first)
    number, (stored,) = await listener.batch()
    assert stored["type"] == "BlockStored"
    assert (stored["token_ids"], stored["block_size"], stored["parent_block_hash"]) == (first[:32], 16, None)
    await asked(emulator, first + list(range(24)), model="tiny")
    second, (child,) = await listener.batch()
    assert (second, child["parent_block_hash"]) == (number + 1, stored["block_hashes"][-1])
    await asked(emulator, first, model="sql", cache_salt="tenant")
    _, (adapted,) = await listener.batch()
    assert adapted["extra_keys"] == [["sql", "tenant"], ["sql"]]
    assert (adapted["lora_id"], adapted["lora_name"]) == (1, "sql")
    async with aiohttp.ClientSession(emulator.url) as client, client.post("/reset_prefix_cache") as response:
        assert await response.json() == {"success": True}
    await asked(emulator, first)
    _, events = await listener.batch()
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]
    assert events[1]["block_hashes"] == stored["block_hashes"]
    await asked(emulator, list(range(5000, 6580)))
    _, events = await listener.batch()
    removed = [event["block_hashes"] for event in events if event["type"] == "BlockRemoved"]
    assert [stored["block_hashes"][1]] in removed


async def test_a_replay_gives_what_was_missed(emulator: Emulator, listener: Listener) -> None:
    await asked(emulator, list(range(2000, 2040)), 40)
    live = [await listener.batch() for _ in range(3)]
    whole = await listener.replayed(0)
    assert [number for number, _ in whole] == list(range(live[-1][0] + 1))
    assert whole[-3:] == live
    assert await listener.replayed(live[1][0]) == live[1:]
    assert await listener.replayed(10_000) == []


async def test_a_replay_that_asks_for_nothing_is_not_answered(emulator: Emulator, listener: Listener) -> None:
    await listener.malformed()
    assert (await listener.replayed(0))[0][0] == 0


async def test_a_replay_begins_silently_with_what_is_kept() -> None:
    emulator = await emulated(kept_batches=3)
    listener = Listener((await sources(emulator))["0"])
    try:
        for number in range(8):
            await asked(emulator, [number] * 16)
        assert [number for number, _ in await listener.replayed(1)] == [5, 6, 7]
    finally:
        listener.close()
        await emulator.close()


async def test_the_sources_are_told_as_the_engine_tells_them(emulator: Emulator) -> None:
    exchanges = json.loads(gzip.decompress((RECORDINGS / "http_exchanges.json.gz").read_bytes()))
    told = await sources(emulator)
    assert list(told) == ["0"]
    source = told["0"]
    assert source["endpoint"].startswith("tcp://*:")
    assert source["endpoint"] != source["replay_endpoint"]
    real = next((x for x in exchanges if x["name"] == "get_kv_event_sources"), None)
    if real is not None:
        assert list(source) == list(json.loads(real["body"])["0"])


async def test_without_events_there_is_no_source() -> None:
    emulator = await emulated(kv_events=None)
    try:
        await asked(emulator, [1] * 40)
        assert await sources(emulator) == {}
    finally:
        await emulator.close()


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    first = await emulated()
    port = int((await sources(first))["0"]["endpoint"].rpartition(":")[2])
    try:
        with pytest.raises(OSError, match="KV events") as refused:
            await emulated(kv_events=port)
        assert refused.value.filename == f"127.0.0.1:{port}"
    finally:
        await first.close()


async def test_an_aborted_job_leaves_what_it_stored_told(emulator: Emulator, listener: Listener) -> None:
    body = {"model": "tiny", "prompt": list(range(3000, 3040)), "max_tokens": 1400, "stream": True}
    async with aiohttp.ClientSession(emulator.url) as client, client.post("/v1/completions", json=body) as response:
        await response.content.readline()
    _, (stored,) = await listener.batch()
    assert stored["token_ids"] == body["prompt"][:32]
    async with asyncio.timeout(BOUND_S):
        while emulator.live.live:  # noqa: ASYNC110 -- nothing to wait on
            await asyncio.sleep(0.001)
    await asked(emulator, [77] * 16)
    told = [event for _, events in await listener.replayed(0) for event in events]
    assert sum(len(event["block_hashes"]) for event in told) == emulator.engine.cache.cached_keys
