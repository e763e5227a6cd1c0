"""A server with two engines is two replicas: told apart by name, header, numbers and events."""

import gzip
import random
from collections import Counter
from pathlib import Path

import pytest

from router.config import load
from router.discovery import CONFIGURATION, Discovery
from router.engine_metrics import parse
from router.errors import ConfigError
from router.kv_standing import APPROXIMATE, EXACT
from router.probes import ProbeError, server_of
from router.ranks import Ranks, rank_header, rank_of
from router.sections import ReplicaAddress
from tests.behind import behind
from tests.emulated import LONG, emulated
from tests.fakes import fake_replica, posted, router_over, until

DP2 = gzip.decompress((Path(__file__).parent.parent / "recordings" / "metrics_dp2.txt.gz").read_bytes()).decode()
R1 = ReplicaAddress(name="r1", url="http://10.0.0.1:8000")


async def two(_url: str, path: str) -> tuple[int, bytes]:
    assert path == "/metrics"
    return 200, DP2.encode()


async def nobody(_url: str, _path: str) -> tuple[int, bytes]:
    raise ProbeError("refused the connection")


async def unknown(_url: str, _path: str) -> tuple[int, bytes]:
    return 404, b"not found"


async def split(setting: str, address: ReplicaAddress = R1, ask=two) -> list[tuple[str, str]]:
    return [(one.name, one.url) for one in await Ranks(setting, ask).split(address)]


@pytest.mark.parametrize(
    ("setting", "own", "names"),
    [
        ("off", None, ["r1"]),
        ("auto", None, ["r1/0", "r1/1"]),
        ("3", None, ["r1/0", "r1/1", "r1/2"]),
        ("1", None, ["r1/0"]),
        ("off", "2", ["r1/0", "r1/1"]),
        ("2", "off", ["r1"]),
        ("off", "auto", ["r1/0", "r1/1"]),
    ],
)
async def test_a_server_is_as_many_replicas_as_it_has_engines(setting, own, names):
    found = await split(setting, R1.model_copy(update={"data_parallel_ranks": own}))
    assert [name for name, _ in found] == names
    assert {server_of(url) for _, url in found} == {R1.url}
    assert len({url for _, url in found}) == len(names)


@pytest.mark.parametrize("ask", [nobody, unknown])
async def test_a_server_that_does_not_say_is_one_replica(ask, caplog):
    assert await split("auto", ask=ask) == [("r1", R1.url)]
    assert ("set data_parallel_ranks" in caplog.text) == (ask is nobody)


async def test_found_replicas_are_split_wherever_they_come_from():
    discovery = Discovery([R1], split=Ranks("2", two).split)
    found = (await discovery.found())[CONFIGURATION]
    assert [one.name for one in found] == ["r1/0", "r1/1"]


def test_a_rank_is_the_fragment_of_a_url():
    assert (rank_of("http://a:1#12"), rank_of("http://a:1"), rank_of("http://a:1#x")) == (12, None, None)
    assert (rank_header("http://a:1#3"), rank_header("http://a:1")) == (b"\r\nX-data-parallel-rank: 3", b"")


def test_engines_numbers_are_told_apart():
    both, first, second = parse(DP2), parse(DP2, 0), parse(DP2, 1)
    assert both.engines == 2
    assert (first.engines, second.engines) == (1, 1)
    assert first.capacity_blocks == second.capacity_blocks == both.capacity_blocks // 2
    assert first.queried_tokens_total + second.queried_tokens_total == both.queried_tokens_total
    assert first.hit_tokens_total + second.hit_tokens_total == both.hit_tokens_total
    assert first.started_s == both.started_s
    assert (first.block_tokens, first.prefix_caching) == (both.block_tokens, both.prefix_caching)
    assert parse(DP2, 7).running is None


@pytest.mark.parametrize("setting", ["0", "65", "on", "-1", "two"])
def test_settings_that_mean_nothing(setting):
    with pytest.raises(ConfigError, match="data_parallel_ranks"):
        load(flags={"data_parallel_ranks": ("test", setting)})


async def test_requests_carry_the_rank_they_were_placed_on():
    async with fake_replica() as replica, router_over(replica, data_parallel_ranks=2) as up:
        for _ in range(4):
            assert (await posted(up.url)).status == 200
        assert up.fleet.replicas() == ("r1/0", "r1/1")
        assert [state.url for state in up.watcher.states()] == [f"{replica.url}#0", f"{replica.url}#1"]
        ranks = [seen.values(b"X-data-parallel-rank") for seen in replica.seen]
        assert sorted(ranks) == [[b"0"], [b"0"], [b"1"], [b"1"]]
        assert all(b"#" not in seen.head for seen in replica.seen)


async def test_without_ranks_no_header_is_added():
    async with fake_replica() as replica, router_over(replica) as up:
        assert (await posted(up.url)).status == 200
        assert replica.seen[0].values(b"X-data-parallel-rank") == []


@pytest.mark.parametrize(("events", "word"), [("auto", EXACT), ("off", APPROXIMATE)])
async def test_what_is_predicted_for_a_rank_is_what_that_rank_delivers(events, word):
    """Chats with history over two engines of one server, each with a cache of its own that is the index's."""
    server = await emulated(ranks=2, kv_events=0, speed=500.0)
    draw = random.Random(1)
    chats = [f"{number} {LONG}" for number in range(6)]
    try:
        async with behind([server], kv_events=events, data_parallel_ranks="auto") as router:
            up = router.up
            assert up.fleet.replicas() == ("r1/0", "r1/1")
            for _ in range(60):
                at = draw.randrange(len(chats))
                predicted, delivered = await router.found(chats[at])
                assert predicted == delivered
                chats[at] += " and another turn of it"
                if events == "auto":
                    await until(
                        lambda: [up.fleet.held_blocks(f"r1/{rank.number}") for rank in server.ranks] == held(server)
                    )
            served = Counter(said["replica"] for said in router.said)
            assert set(served) == {"r1/0", "r1/1"}
            assert [rank.live.engine.counters.finished for rank in server.ranks] == [served["r1/0"], served["r1/1"]]
            delivered = Counter()
            for said in router.said:
                delivered[said["replica"]] += said["delivered_tokens"]
            hits = [rank.live.engine.counters.hit_tokens for rank in server.ranks]
            assert hits == [delivered["r1/0"], delivered["r1/1"]]
            assert min(hits) > 1000
            assert [state.standing.word for state in up.events.states()] == [word, word]
            assert all(state.engine is not None and state.engine.engines == 1 for state in up.watcher.states())
    finally:
        await server.close()


def held(server) -> list[int]:
    return [rank.live.engine.cache.cached_keys for rank in server.ranks]


async def test_a_rank_that_is_emptied_is_emptied_alone():
    """The other engine's blocks stay known."""
    server = await emulated(ranks=2, kv_events=0)
    try:
        async with behind([server], data_parallel_ranks="2") as router:
            up = router.up
            for number in range(4):
                await router.found(f"{number} {LONG}")
            await until(lambda: [up.fleet.held_blocks(name) for name in up.fleet.replicas()] == held(server))
            first = server.ranks.first
            kept = held(server)[1]
            assert min(held(server)) > 0
            assert first.live.engine.clear_cache()
            rank = {"X-data-parallel-rank": "0"}
            async with router.client.post(server.url + "/v1/completions", json={"prompt": LONG}, headers=rank) as found:
                assert found.status == 200
            await until(lambda: [up.fleet.held_blocks(name) for name in up.fleet.replicas()] == held(server))
            assert held(server)[1] == kept == up.fleet.held_blocks("r1/1")
    finally:
        await server.close()
