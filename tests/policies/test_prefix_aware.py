"""Prefixes attract, work repels, and nobody herds."""

from collections import Counter
from dataclasses import replace

import pytest

from policies.conformance import sample_request
from policies.fleet import Fleet
from policies.prefix_aware import PrefixAware
from policies.types import Choice, Replica, Request

LETTERS = {
    "f": "in_flight",
    "p": "pending_prefill_tokens",
    "m": "matched_blocks",
    "s": "shared_blocks",
    "h": "held_blocks",
    "w": "weight",
    "k": "engine_kv_used_fraction",
}


def replicas(text: str) -> tuple[Replica, ...]:
    """`"r1 m=4 p=900 | r2 f=3 w=2 k=0.5"`, see LETTERS."""
    made = []
    for part in text.split("|"):
        name, *pairs = part.split()
        values = {LETTERS[letter]: float(value) for letter, _, value in (pair.partition("=") for pair in pairs)}
        made.append(replace(Replica(name, 0, 0, 0, 0, 0, None, 1.0), **values))  # type: ignore[arg-type]
    return tuple(made)


def prompt(tokens: int) -> Request:
    return replace(sample_request(blocks=(tokens - 1) // 16), prompt_tokens=tokens)


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
            "r1 m=60 s=60 f=8 | r2 s=60 f=9 | r3 s=60",
            Choice("r3", "load"),
            id="a common head does not hold anyone",
        ),
        pytest.param(2000, "r1 m=60 s=60 | r2 s=60", Choice("r1", "prefix"), id="but breaks a tie"),
        pytest.param(2000, "r1 m=60 s=60 p=960 | r2 s=60 m=50", Choice("r2", "load"), id="a little less, much calmer"),
        pytest.param(2000, "r1 p=1000 w=4 | r2 p=500", Choice("r1", "load"), id="four times as fast"),
        pytest.param(2000, "r1 m=50 p=1700 | r2", Choice("r2", "load"), id="an empty pool: moving is cheap"),
        pytest.param(2000, "r1 m=50 p=1700 k=0.8 | r2 k=0.8", Choice("r1", "prefix"), id="a full pool: it costs"),
        pytest.param(2000, "r1 m=50 p=9000 k=1.0 | r2 k=1.0", Choice("r2", "load"), id="yet is not infinite"),
    ],
)
def test_the_cheapest_replica_wins(tokens: int, view: str, expected: Choice) -> None:
    assert PrefixAware().choose(prompt(tokens), replicas(view)) == expected


def test_the_cost_is_the_documented_one() -> None:
    view = replicas("r1 m=10 s=20 p=300 f=2 w=2 k=0.5 | r2 s=20")
    costs = PrefixAware(in_flight_tokens=50, shared_cost=0.5).explained(prompt(1000), view)
    assert costs == {"r1": (300 + 100) / 2 + (3 * 680 + 0.5 * 160) / 2, "r2": 2 * 680 + 0.5 * 320}
    assert PrefixAware(stickiness=1.0, shared_cost=1.0).explained(prompt(1000), view)["r2"] == 1000


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


@pytest.mark.parametrize("in_flight_at_once", [12, 40])
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
    hot = [replace(sample_request(1, blocks=60), id=f"hot-{number}") for number in range(4 * count)]
    for asked in hot:
        fleet.sent(asked, policy.choose(asked, fleet.view(asked, 0.0)).replica)
    loads = [fleet.load(f"r{number}")[0] for number in range(count)]
    assert max(loads) <= 4 * max(1, sum(loads) / sum(load > 0 for load in loads))
    assert sum(load > 0 for load in loads) > 1, "a second copy appears"
    for asked in hot:
        fleet.done(asked)
    calm = replace(hot[0], id="calm")
    assert policy.choose(calm, fleet.view(calm, 0.0)).reason == "prefix"
