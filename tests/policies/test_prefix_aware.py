"""Prefixes attract, work repels, and nobody herds."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.fleet import Fleet
from policies.prefix_aware import PrefixAware
from policies.types import Choice, Request
from tests.policies.views import prompt, replicas


@pytest.mark.parametrize(
    ("tokens", "view", "expected"),
    [
        pytest.param(2000, "r1 p=99999", Choice("r1", "only"), id="one replica"),
        pytest.param(2000, "r1 m=2 | r2 m=9", Choice("r2", "prefix"), id="the longest match, not the first"),
        pytest.param(2000, "r1 m=100 p=900 | r2", Choice("r1", "prefix"), id="worth the wait"),
        pytest.param(2000, "r1 m=100 p=9000 | r2", Choice("r2", "load"), id="not worth the wait"),
        pytest.param(2000, "r1 m=4 p=900 | r2 m=0 p=0", Choice("r2", "load"), id="a few blocks are not worth it"),
        pytest.param(2000, "r1 f=40 h=50 | r2 h=5000", Choice("r2", "load"), id="load decides on a miss, not size"),
        pytest.param(2000, "r1 f=10 | r2 f=1 m=60 | r3 f=1 | r4 f=1", Choice("r2", "prefix"), id="imbalance elsewhere"),
        pytest.param(2000, "r1 f=10 m=5 | r2 f=1 m=60 | r3 f=1", Choice("r2", "prefix"), id="the calm one of two warm"),
        pytest.param(10000, "r1 p=100000 f=1 | r2 p=150 f=3", Choice("r2", "load"), id="size, not count"),
        pytest.param(32000, "r1 p=32000 f=1 | r2", Choice("r2", "load"), id="dispatched counts before any reply"),
        pytest.param(2000, "r1 m=80 | r2 | r3 | r4 f=9", Choice("r1", "prefix"), id="load elsewhere is no reason"),
        pytest.param(
            2000,
            "r1 m=60 s=60 f=8 n=999 | r2 s=60 f=9 n=999 | r3 s=60 n=999",
            Choice("r3", "load"),
            id="where there is room a common head does not hold anyone",
        ),
        pytest.param(
            2000,
            "r1 m=60 s=60 f=8 | r2 s=60 f=9 | r3 s=60",
            Choice("r1", "prefix"),
            id="where that is not known it holds a few",
        ),
        pytest.param(
            2000, "r1 m=60 s=60 f=60 | r2 s=60 f=9 | r3 s=60", Choice("r3", "load"), id="but nobody in a crowd"
        ),
        pytest.param(2000, "r1 m=60 s=60 | r2 s=60", Choice("r1", "prefix"), id="but breaks a tie"),
        pytest.param(2000, "r1 m=60 s=60 p=960 | r2 s=60 m=50", Choice("r2", "load"), id="a little less, much calmer"),
        pytest.param(
            2000, "r1 m=60 s=60 c=60 f=1 | r2 s=60 c=60", Choice("r2", "load"), id="a scarce head holds nobody"
        ),
        pytest.param(
            2000, "r1 m=60 s=60 c=40 | r2 s=60 c=40", Choice("r1", "prefix"), id="only its scarce part is free"
        ),
        pytest.param(
            2000, "r1 m=80 s=60 c=60 p=1600 | r2 s=60 c=60", Choice("r2", "load"), id="nor its few own blocks"
        ),
        pytest.param(2000, "r1 h=80 n=100 | r2 h=60 n=100", Choice("r2", "load"), id="as busy: where there is room"),
        pytest.param(2000, "r1 h=80 n=100 | r2 h=99 n=200", Choice("r2", "load"), id="room is a share"),
        pytest.param(2000, "r1 m=9 f=1 | r2 m=9", Choice("r2", "load"), id="all are as warm: load decides"),
        pytest.param(2000, "r1 p=1000 w=4 | r2 p=500", Choice("r1", "load"), id="four times as fast"),
        pytest.param(2000, "r1 m=50 p=2600 n=9 | r2 n=9", Choice("r2", "load"), id="an empty pool: moving is cheap"),
        pytest.param(2000, "r1 m=50 p=2600 k=0.8 | r2 k=0.8", Choice("r1", "prefix"), id="a full pool: it costs"),
        pytest.param(
            9000, "r1 f=2 | r2 f=6 p=900 | r3 f=4 p=300", Choice("r1", "load"), id="a long prompt keeps off a crowd"
        ),
        pytest.param(
            9000, "r1 f=2 p=16000 | r2 f=6 p=9000", Choice("r1", "load"), id="even where fewer tokens wait, if long"
        ),
        pytest.param(200, "r1 f=2 p=16000 | r2 f=6 p=9000", Choice("r2", "load"), id="a short one goes there"),
        pytest.param(2000, "r1 m=30 p=9000 | r2", Choice("r2", "load"), id="others are idle: leave a long queue"),
        pytest.param(
            2000, "r1 m=30 p=9000 | r2 p=7000", Choice("r1", "prefix"), id="all have queues: capacity is short, stay"
        ),
        pytest.param(2000, "r1 m=50 p=9900 k=1.0 | r2 k=1.0", Choice("r2", "load"), id="yet is not infinite"),
    ],
)
def test_the_cheapest_replica_wins(tokens: int, view: str, expected: Choice) -> None:
    assert PrefixAware().choose(prompt(tokens), replicas(view)) == expected


def test_the_cost_is_the_documented_one() -> None:
    view = replicas("r1 m=10 s=20 c=15 p=300 f=2 w=2 k=0.5 h=40 n=50 | r2 s=20 c=15")
    costs = PrefixAware(in_flight_tokens=50).explained(prompt(1000), view)
    crowd, queue = 1.5 * 32_768 / (32_768 + 744), 2 * 400 / 1000
    assert costs["r1"] == pytest.approx((400 + (4 + 2 * 0.8 + crowd + queue) * (680 + 0.8 * 80)) / 2)
    assert costs["r2"] == pytest.approx((3 + 2 + 0.5 * 32_768 / (32_768 + 720)) * (680 + 0.5 * 80))
    [plain] = PrefixAware(stickiness=1.0).explained(prompt(1000), replicas("r1 s=20 n=9")).values()
    crowd = 32_768 / (32_768 + 686.4)
    assert plain == pytest.approx((1 + crowd) * (680 + 0.02 * 320)), "an empty cache still computes the head once"


def test_an_unknown_size_counts_as_full() -> None:
    choices = {PrefixAware(seed=seed).choose(prompt(2000), replicas("r1 h=80 n=100 | r2")) for seed in range(20)}
    assert choices == {Choice("r1", "load")}, "of unknown size counts as full: a new prompt might evict there"


def test_misses_fill_the_idle_evenly() -> None:
    policy, counts = PrefixAware(), Counter({"r1": 40})
    for _ in range(300):
        if counts["r2"] < 40 or counts["r3"] < 40:
            assert counts["r1"] == 40
        view = replicas(" | ".join(f"{name} f={counts[name]}" for name in ("r1", "r2", "r3")))
        counts[policy.choose(prompt(2000), view).replica] += 1
    assert abs(counts["r2"] - counts["r3"]) <= 0.1 * counts["r2"]


def test_ties_on_an_idle_fleet_are_spread() -> None:
    policy = PrefixAware()
    choices = [policy.choose(prompt(2000), replicas("r1 | r2 | r3")) for _ in range(200)]
    assert all(45 <= count <= 90 for count in Counter(choice.replica for choice in choices).values())
    assert {choice.reason for choice in choices} == {"tie"}


def test_a_user_s_turns_stay_whatever_one_other_replica_does() -> None:
    fleet, policy = Fleet(), PrefixAware()
    for name in ("r1", "r2", "r3", "r4"):
        fleet.joined(name)
    for number in range(9):
        fleet.sent(replace(sample_request(100 + number, blocks=0), id=f"busy-{number}"), "r4")
    homes = []
    for turn in range(1, 6):
        asked = replace(sample_request(7, blocks=40), id=f"turn-{turn}")
        asked = replace(asked, blocks=asked.blocks[: 8 * turn], prompt_tokens=128 * turn + 5)
        choice = policy.choose(asked, fleet.view(asked, 0.0))
        fleet.sent(asked, choice.replica)
        fleet.done(asked)
        homes.append(choice)
    assert len({choice.replica for choice in homes}) == 1
    assert [choice.reason for choice in homes[1:]] == ["prefix"] * 4


def new_user(number: int, system: int) -> Request:
    head, own = sample_request(1, blocks=system).blocks, sample_request(10_000 + number, blocks=12).blocks
    return replace(sample_request(number), id=f"user-{number}", blocks=head + own, prompt_tokens=16 * (system + 12) + 5)


@pytest.mark.parametrize("in_flight_at_once", [1, 4, 12, 40])
def test_new_users_of_one_system_prompt_do_not_herd(in_flight_at_once: int) -> None:
    fleet, policy = Fleet(), PrefixAware()
    for name in ("r1", "r2", "r3", "r4"):
        fleet.joined(name, capacity_blocks=4_000)
    counts, live = Counter[str](), list[Request]()
    for number in range(500):
        asked = new_user(number, system=190)
        choice = policy.choose(asked, fleet.view(asked, 0.0))
        fleet.sent(asked, choice.replica)
        counts[choice.replica] += 1
        live.append(asked)
        if len(live) >= in_flight_at_once:
            fleet.done(live.pop(0))
    assert len(counts) == 4
    assert max(counts.values()) <= 0.30 * 500


@pytest.mark.parametrize("count", [8, 200])
def test_a_hot_prefix_spills_gets_more_copies_and_comes_home(count: int) -> None:
    fleet, policy = Fleet(), PrefixAware()
    for number in range(count):
        fleet.joined(f"r{number}")
    hot = [replace(sample_request(1, blocks=60), id=f"hot-{number}") for number in range(12 * count)]
    for asked in hot:
        fleet.sent(asked, policy.choose(asked, fleet.view(asked, 0.0)).replica)
    loads = [fleet.load(f"r{number}")[0] for number in range(count)]
    assert max(loads) <= 4 * max(1, sum(loads) / sum(load > 0 for load in loads))
    assert sum(load > 0 for load in loads) > 1, "a second copy appears"
    for asked in hot:
        fleet.done(asked)
    calm = replace(hot[0], id="calm")
    assert policy.choose(calm, fleet.view(calm, 0.0)).reason == "prefix"


def conversations(users: int, turns: int, system: int) -> Iterator[Request]:
    """Turns of many users behind one system prompt, shuffled; a turn adds 10 blocks to its user's history."""
    draw = random.Random(1)
    order = [user for user in range(users) for _ in range(turns)]
    draw.shuffle(order)
    head, turn_of = sample_request(1, blocks=system).blocks, Counter[int]()
    for number, user in enumerate(order):
        turn_of[user] += 1
        own = sample_request(1_000 + user, blocks=10 * turns).blocks[: 10 * turn_of[user]]
        blocks = head + own
        yield replace(sample_request(), id=str(number), blocks=blocks, prompt_tokens=16 * len(blocks) + 5)


@pytest.mark.parametrize("told_size", [True, False])
@pytest.mark.parametrize("in_flight_at_once", [1, 4, 16])
def test_a_quiet_fleet_uses_all_of_its_cache(in_flight_at_once: int, told_size: bool) -> None:
    """Without load to push anyone away, a head that everybody shares must not keep all users on one replica.

    4 caches of 1,750 blocks hold the 75 of the system prompt and the 6,000 of the users only together.
    """
    fleet, policy = Fleet(unknown_capacity_blocks=1_750), PrefixAware()
    for name in ("r1", "r2", "r3", "r4"):
        fleet.joined(name, capacity_blocks=1_750 if told_size else None)
    computed, live, most = Counter[str](), list[Request](), 0
    for asked in conversations(users=100, turns=6, system=75):
        choice = policy.choose(asked, fleet.view(asked, 0.0))
        fleet.sent(asked, choice.replica)
        computed[choice.replica] += fleet.load(choice.replica)[1]
        fleet.first_token(asked)
        live.append(asked)
        most += asked.prompt_tokens
        if len(live) >= in_flight_at_once:
            fleet.done(live.pop(0))
    least = 16 * (75 + 100 * 60) + 5 * 600
    assert sum(computed.values()) <= 1.1 * least, "of what one cache of unlimited size would compute"
    assert max(computed.values()) <= 1.3 * sum(computed.values()) / 4


def test_one_of_many_heads_stays_where_it_is() -> None:
    """Copies of every head would crowd each other out: each tenant's prompt keeps to few replicas."""
    fleet, policy, homes = Fleet(), PrefixAware(), defaultdict[int, set[str]](set)
    for number in range(8):
        fleet.joined(f"r{number}", capacity_blocks=4_000)
    for number in range(1_200):
        tenant = number % 60
        head, own = sample_request(tenant, blocks=200).blocks, sample_request(5_000 + number, blocks=4).blocks
        asked = replace(sample_request(), id=str(number), blocks=head + own, prompt_tokens=16 * 204 + 5)
        choice = policy.choose(asked, fleet.view(asked, 0.0))
        fleet.sent(asked, choice.replica)
        fleet.done(asked)
        homes[tenant].add(choice.replica)
    assert max(map(len, homes.values())) == 1
    assert max(Counter(home for [home] in homes.values()).values()) <= 9, "and they are spread: 60 over 8"


def test_a_new_system_prompt_spreads_over_full_caches() -> None:
    """One replica keeps its first users, until they show in its share of all prompts; then all replicas get it."""
    fleet, policy, counts = Fleet(), PrefixAware(), Counter[str]()
    for name in ("r1", "r2", "r3", "r4"):
        fleet.joined(name, capacity_blocks=1_000)
    for asked in [new_user(number, system=100) for number in range(500)]:
        fleet.sent(asked, policy.choose(asked, fleet.view(asked, 0.0)).replica)
        fleet.done(asked)
    assert [fleet.held_blocks(name) for name in fleet.replicas()] == [1_000] * 4
    for number in range(300):
        asked = new_user(number, system=100)
        fresh = sample_request(2, blocks=100).blocks + sample_request(90_000 + number, blocks=12).blocks
        asked = replace(asked, id=f"fresh-{number}", blocks=fresh)
        choice = policy.choose(asked, fleet.view(asked, 0.0))
        fleet.sent(asked, choice.replica)
        fleet.done(asked)
        if number >= 100:
            counts[choice.replica] += 1
    assert len(counts) == 4
    assert max(counts.values()) <= 0.35 * 200
