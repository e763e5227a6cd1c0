"""`router check` before replicas whose events come from elsewhere, are something else, or do not come."""

import asyncio
from contextlib import asynccontextmanager
from fnmatch import fnmatch

import pytest
import zmq
import zmq.asyncio
from aiohttp.test_utils import unused_port

from router import kv_check
from router.check import asked_all
from router.config import load
from router.kv_standing import APPROXIMATE, EXACT, KvState, Standing
from tests.emulated import emulated


async def checked(replicas, kv_events="auto", own=(), **settings):
    """The replicas' rows of `router check`; `own` are their own `kv_events`."""
    flags = {"replicas": ",".join(f"r{at}={one.url}" for at, one in enumerate(replicas, 1)), "kv_events": kv_events}
    flags |= {"tokenizer.where": "replica", **settings}
    config, _ = load(flags={name: ("test", value) for name, value in flags.items()})
    if own:
        given = zip(config.replicas, own, strict=True)
        config = config.model_copy(update={"replicas": tuple(r.model_copy(update={"kv_events": o}) for r, o in given)})
    checkup = await asked_all(config, None)
    assert checkup.fine == (not any(found.problems for found in checkup.replicas))
    return checkup.replicas


def endpoints(replica) -> str:
    source = replica.telling.source()
    return f"{source['endpoint']},{source['replay_endpoint']}".replace("*", "127.0.0.1")


@asynccontextmanager
async def serving(**settings):
    replica = await emulated(**settings)
    try:
        yield replica
    finally:
        await replica.close()


@asynccontextmanager
async def publishing(*frames: bytes):
    """A ZMQ publisher of something else, again and again."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUB)
    endpoint = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"

    async def said():
        for number in range(10_000):
            await socket.send_multipart([frame % number if b"%" in frame else frame for frame in frames])
            await asyncio.sleep(0.005)

    saying = asyncio.create_task(said())
    try:
        yield endpoint
    finally:
        saying.cancel()
        context.destroy(linger=0)


async def test_a_replica_that_publishes_is_fine_and_known():
    async with serving(kv_events=0) as replica:
        for kv_events in ("auto", endpoints(replica)):
            (found,) = await checked([replica], kv_events)
            assert found.problems == []
            assert (found.cache, found.cache_reason) == (EXACT, "block hashes are sha256 with vLLM's own seed")


async def test_ranks_are_listened_to_one_by_one():
    async with serving(kv_events=0, ranks=2) as replica:
        found = await checked([replica], data_parallel_ranks="auto")
        assert [(one.name, one.cache, one.problems) for one in found] == [("r1/0", EXACT, []), ("r1/1", EXACT, [])]


async def test_one_that_publishes_nothing_and_says_so_has_no_problem():
    async with serving() as replica:
        (found,) = await checked([replica])
        assert found.problems == []
        assert "publishes no KV events; start vLLM with --kv-events-config" in " ".join(found.notes)


async def test_an_endpoint_where_nobody_listens():
    endpoint = f"tcp://127.0.0.1:{unused_port()}"
    async with serving() as replica:
        (found,) = await checked([replica], endpoint)
        (problem,) = found.problems
        assert problem.startswith(
            f"has KV events at {endpoint}, which can't be reached; kv_events is {endpoint}: set it"
        )
        assert "--kv-events-config" in problem
        assert (found.cache, found.cache_reason) == (
            APPROXIMATE,
            f"has KV events at {endpoint}, which can't be reached",
        )


async def test_an_endpoint_that_is_another_service():
    async with serving() as replica:
        endpoint = replica.url.replace("http", "tcp")
        (found,) = await checked([replica], endpoint)
        (problem,) = found.problems
        assert problem.startswith(f"has something else than a ZMQ publisher at {endpoint}; correct kv_events")


async def test_blocks_that_do_not_fit_come_with_one_remedy():
    async with serving(kv_events=0, block_tokens=24) as replica:
        (found,) = await checked([replica])
        remedy = "; run the router with --set block_tokens=24"
        assert [problem.removesuffix(remedy) for problem in found.problems] == [
            "caches blocks of 24 tokens, which is no multiple of block_tokens = 16",
            "stores blocks of 24 tokens, which neither divides block_tokens = 16 nor is a multiple of it",
        ]


async def test_an_endpoint_of_another_replica():
    """Two replicas whose endpoints were mixed up: both publish, and neither what it computes."""
    async with serving(kv_events=0) as first, serving(kv_events=0) as second:
        fine = await checked([first, second], own=[endpoints(first), endpoints(second)])
        assert [one.problems for one in fine] == [[], []]
        mixed = await checked([first, second], own=[endpoints(second), endpoints(first)])
        for one, other in zip(mixed, (second, first), strict=True):
            where = endpoints(other).partition(",")[0]
            (problem,) = one.problems
            told = (
                f"has KV events at {where} that tell nothing of a prompt of 17 tokens it has just computed; kv_events"
            )
            assert problem.startswith(told)
            assert one.cache == APPROXIMATE


async def test_a_publisher_that_never_speaks():
    async with serving() as replica:
        context = zmq.Context()
        silent = context.socket(zmq.PUB)
        where = f"tcp://127.0.0.1:{silent.bind_to_random_port('tcp://127.0.0.1')}"
        try:
            (found,) = await checked([replica], where)
        finally:
            context.destroy(linger=0)
        (problem,) = found.problems
        assert problem.startswith(f"published nothing at {where} while it computed a prompt of 17 tokens; kv_events is")


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ((b"kv", b"no number", b""), "sends messages at * that are no KV events"),
        ((b"kv", b"\0\0\0\0%04d", b"garbage"), "sends events that can't be read (not msgpack)"),
    ],
)
async def test_an_endpoint_that_publishes_something_else(frames, said):
    async with serving() as replica, publishing(*frames) as endpoint:
        (found,) = await checked([replica], endpoint)
        (problem,) = found.problems
        assert fnmatch(problem, f"{said}; kv_events is {endpoint}: set it to endpoint and replay_endpoint of this*")


async def test_a_replay_endpoint_that_is_none():
    async with serving(kv_events=0) as replica:
        live = endpoints(replica).partition(",")[0]
        (found,) = await checked([replica], f"{live},tcp://127.0.0.1:{unused_port()}")
        assert found.cache == EXACT
        (problem,) = found.problems
        assert problem.startswith("does not replay what it published before a router listens; kv_events is")


@pytest.mark.parametrize(
    ("kept", "per_s", "told"),
    [
        (None, 400.0, ""),
        (10_000, 300.0, ""),
        (10_000, 400.0, '10000 batches of KV events for a replay, 25 s at the 400 a second * "buffer_steps":24000 in'),
        (200, 5.0, ""),
        (100, 5.0, '100 batches of KV events for a replay, 20 s at the 5 a second * "buffer_steps":10000 in'),
        (10_000, None, ""),
        (2000, None, "2000 batches of KV events for a replay, 20 s at 100 a second, as a busy engine sends*:10000 in"),
    ],
)
def test_a_replay_buffer_is_measured_by_the_traffic(kept, per_s, told):
    state = KvState("r1", Standing(EXACT, ""), True, kept, 7, per_s, {}, {})
    found = kv_check._short_buffer(state)
    assert len(found) == bool(told)
    assert all(fnmatch(one, f"keeps only {told} --kv-events-config") for one in found)
