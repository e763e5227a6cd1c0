"""What is recorded, what never is, and that the simulator reads it back with the same hits."""

import asyncio
import json
import stat
from base64 import b64decode
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import numpy as np
import orjson
import pytest

from policies.types import Request
from router.app import running
from router.config import load
from router.outcome import Outcome
from router.readers import TINY, local_reader
from router.record import Answered, Lines, Recorder
from sim import emulator
from sim.cache_replay import InfiniteCache, prompts_of
from sim.cost import DEFAULT_PROFILE, PROFILES
from sim.traces import describe, open_trace
from tests.fakes import fake_replica, posted, router_over
from tests.router.outcomes import altered, outcome

SALT = bytes(range(32))
SECRET = "the colour of the vault is heliotrope"


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def asked(blocks: tuple[bytes, ...], session: str | None = "s", tenant: str = "acme") -> Request:
    return Request(
        id="1",
        route="/v1/completions",
        model="m",
        tenant=tenant,
        user="eve@example.com",
        session=session,
        prompt_tokens=len(blocks) * 16 + 5,
        max_output_tokens=None,
        blocks=blocks,
        block_tokens=16,
    )


def went(request: Request, **other: object) -> Outcome:
    usual = outcome(request.prompt_tokens, delivered=16, output_tokens=7, duration_s=2.0, ttft_s=0.5)
    return altered(usual, route=request.route, model=request.model, **other)


def row(lines: Lines, blocks: tuple[bytes, ...], at_s: float = 0.0, **other: object) -> dict[str, object]:
    request = asked(blocks)
    return json.loads(lines.row(Answered(at_s, request, went(request, **other))))


def test_a_row_holds_numbers_words_and_salted_names():
    lines = Lines(SALT)
    told = row(lines, (key(1), key(2)))
    assert told.pop("ids")
    assert told.pop("tenant") != "acme"
    assert told.pop("session") != "s"
    assert told == {
        "t": 0.0,
        "route": "/v1/completions",
        "model": "m",
        "prompt_tokens": 37,
        "output_tokens": 7,
        "status": 200,
        "outcome": "ok",
        "replica": "r1",
        "reason": "prefix",
        "ttft_s": 0.5,
        "e2e_s": 2.0,
        "available_tokens": 0,
        "predicted_tokens": 0,
        "delivered_tokens": 16,
    }


def test_what_is_unknown_is_left_out():
    told = row(Lines(SALT), (), ttft_s=None, delivered_tokens=None, output_tokens=None)
    assert {"ttft_s", "delivered_tokens", "output_tokens", "ids", "after"}.isdisjoint(told)


def test_another_salt_gives_other_names():
    mine, theirs = row(Lines(SALT), (key(1),)), row(Lines(SALT[::-1]), (key(1),))
    assert all(mine[name] != theirs[name] for name in ("ids", "session", "tenant"))
    assert mine == row(Lines(SALT), (key(1),))


def test_the_next_turn_writes_only_its_new_blocks():
    lines = Lines(SALT)
    turn = tuple(map(key, range(8000)))
    first = row(lines, turn)
    again = row(lines, (*turn, key(8000), key(8001)))
    assert len(b64decode(first["ids"])) == 8000 * 8
    assert again["after"] == [0, 8000]
    assert len(b64decode(again["ids"])) == 2 * 8
    same = row(lines, turn)
    assert same["after"] == [0, 8000]
    assert "ids" not in same


def test_a_shared_head_is_referred_to_and_marks_stay_bounded(monkeypatch):
    monkeypatch.setattr("router.record._MOST_MARKS", 4)
    lines = Lines(SALT)
    head = tuple(map(key, range(100)))
    row(lines, (*head, key(500)))
    assert row(lines, (*head, key(600)))["after"] == [0, 96]
    for number in range(20):
        row(lines, (key(1000 + number),))
    assert "after" not in row(lines, (*head, key(700)))


async def recorded(path, requests, *, max_bytes=10**9):
    recorder = Recorder(str(path), 16, max_bytes=max_bytes, clock=lambda: 100.0, salt=SALT)
    for request, began_s in requests:
        recorder.answered(request, went(request), began_s)
    recorder.close()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_a_recording_is_read_back(tmp_path):
    path = tmp_path / "t.jsonl"
    head = tuple(map(key, range(40)))
    prompts = [(*head, key(100)), (*head, key(200)), (*head, key(100), key(101))]
    await recorded(path, [(asked(blocks), 103.0 - place) for place, blocks in enumerate(prompts)])
    workload = open_trace(path)
    arrivals = list(workload.arrivals)
    assert [arrival.time_s for arrival in arrivals] == [0.0, 1.0, 2.0]  # written as they ended, read as they began
    assert [arrival.prompt_tokens for arrival in arrivals] == [677, 661, 661]
    assert arrivals[0].keys[:41] == arrivals[2].keys[:41]
    assert arrivals[0].keys[:40] == arrivals[1].keys[:40]
    assert arrivals[0].keys[40] != arrivals[1].keys[40]
    assert {arrival.output_tokens for arrival in arrivals} == {7}
    assert {arrival.cached_tokens for arrival in arrivals} == {16}
    assert {arrival.ttft_s for arrival in arrivals} == {0.5}
    assert len({arrival.session for arrival in arrivals}) == 1


async def test_two_recordings_in_one_file_share_no_blocks(tmp_path):
    path = tmp_path / "t.jsonl"
    blocks = tuple(map(key, range(3)))
    await recorded(path, [(asked(blocks), 100.0)])
    with path.open("ab") as file:
        file.write(b'{"t":1.0,"route"')  # as a killed router leaves it
    recorder = Recorder(str(path), 16, max_bytes=10**9, clock=lambda: 100.0)
    recorder.answered(asked(blocks), went(asked(blocks)), 100.0)
    recorder.close()
    arrivals = list(open_trace(path, skip_bad=True).arrivals)
    assert len(arrivals) == 2
    assert set(arrivals[0].keys).isdisjoint(arrivals[1].keys)
    assert describe(path, skip_bad=True).skipped == (("not JSON", 1),)


async def test_a_full_file_ends_the_recording(tmp_path, caplog):
    path = tmp_path / "t.jsonl"
    rows = await recorded(path, [(asked((key(number),)), 100.0) for number in range(50)], max_bytes=2000)
    assert 2 < len(rows) < 10
    assert path.stat().st_size <= 2000
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "record.max_bytes" in caplog.text


async def test_a_broken_disk_ends_the_recording_and_nothing_else(tmp_path, caplog):
    recorder = Recorder("/dev/full", 16, max_bytes=10**9, clock=lambda: 0.0)
    recorder.answered(asked(()), went(asked(())), 0.0)
    recorder.close()
    assert "recording ends" in caplog.text


async def test_too_many_waiting_are_lost_and_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("router.record._MOST_WAITING", 2)
    rows = await recorded(tmp_path / "t.jsonl", [(asked(()), 100.0)] * 5)
    assert len(rows) == 3
    assert "3 requests were not recorded" in caplog.text


async def test_the_file_is_its_owners(tmp_path):
    path = tmp_path / "t.jsonl"
    await recorded(path, [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_path_that_can_not_be_opened_is_told_at_the_start(tmp_path):
    async with fake_replica() as replica:
        with pytest.raises(OSError, match="nowhere"):
            async with router_over(replica, record__path=str(tmp_path / "nowhere" / "t.jsonl")):
                pass


async def test_what_is_written_holds_no_text_and_no_name(tmp_path):
    path = tmp_path / "t.jsonl"
    body = orjson.dumps({"model": "m", "prompt": SECRET * 20, "user": "eve@example.com", "prompt_cache_key": "case-7"})
    async with fake_replica() as replica, router_over(replica, record__path=str(path)) as up:
        assert (await posted(up.url, body, b"Authorization: Bearer sk-hidden")).status == 200
    data = path.read_bytes()
    assert data.count(b"\n") == 2
    for hidden in (b"heliotrope", b"eve@", b"case-7", b"sk-hidden", SALT):
        assert hidden not in data


@asynccontextmanager
async def emulated(path):
    """A router that records, over one emulated replica."""
    reader = local_reader(TINY, block_tokens=16)
    async with AsyncExitStack() as stack:
        replica = await emulator.start(
            "127.0.0.1",
            0,
            name="r1",
            model="tiny",
            blocks=2000,
            block_tokens=16,
            profile=PROFILES[DEFAULT_PROFILE],
            speed=100.0,
            tokenize=reader.token_ids,
            detokenize=reader.tokenizer.decode,
        )
        stack.push_async_callback(replica.close)
        flags = {
            "listen.port": 0,
            "admin.port": 0,
            "replicas": replica.url,
            "tokenizer.path": str(TINY),
            "record.path": str(path),
        }
        config, _ = load(flags={name: ("test", value) for name, value in flags.items()})
        up = await stack.enter_async_context(running(config))
        await up.readers.ready()
        yield up.url


async def test_the_simulator_finds_the_hits_the_replica_delivered(tmp_path):
    path = tmp_path / "t.jsonl"
    system = "You are a careful assistant who answers in short sentences. " * 12
    talks = {user: f"{system}I am number {user}. " for user in range(4)}
    order = np.random.default_rng(3).permutation(np.repeat(np.arange(4), 4)).tolist()
    delivered = []
    async with emulated(path) as url, aiohttp.ClientSession(trust_env=False) as client:
        for turn, user in enumerate(order):
            talks[user] += f"And this is question {turn}, about the weather in a town of {turn * 7} people. " * 2
            body = {"model": "tiny", "prompt": talks[user], "max_tokens": 1}
            async with client.post(f"{url}/v1/completions", json=body) as reply:
                usage = (await reply.json())["usage"]
                delivered.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    workload = open_trace(path)
    assert [(one.prompt_tokens, one.cached_tokens) for one in workload.arrivals] == delivered
    cache = InfiniteCache()
    found = [
        min(cache.served(blocks), (tokens - 1) // 16) * 16
        for tokens, blocks in prompts_of(open_trace(path, cache_outputs=False))
    ]
    assert found == [cached for _, cached in delivered]
    assert sum(found) > 1000
    assert describe(path).format == "router"


async def test_recording_costs_the_event_loop_no_writing(tmp_path):
    """Rows reach the file from another thread, some time after the request."""
    path = tmp_path / "t.jsonl"
    recorder = Recorder(str(path), 16, max_bytes=10**9, clock=lambda: 0.0)
    recorder.answered(asked(()), went(asked(())), 0.0)
    assert path.read_bytes().count(b"\n") == 1
    async with asyncio.timeout(5):
        while path.read_bytes().count(b"\n") < 2:  # noqa: ASYNC110 -- a file tells no event
            await asyncio.sleep(0.01)
    recorder.close()
