"""A prefix has two homes, the warmer is kept while it is in time, and a hot prefix is told apart further on."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.dualmap import DualMap, Popularity
from policies.types import Choice, Replica, Request
from tests.policies.views import prompt, replicas

NAMES = [f"r{number}" for number in range(8)]
IDLE = replicas(" | ".join(NAMES))


def after_others(**settings: int) -> DualMap:
    """A policy that has seen 40 prompts, none like another."""
    policy = DualMap(**settings)
    for number in range(40):
        policy.choose(prompt(200, 900 + number), IDLE)
    return policy


def pair(request: Request) -> list[str]:
    """Where it may go: both, for equal matches are drawn."""
    policy = after_others()
    chosen = {policy.choose(request, IDLE).replica for _ in range(10)}
    assert len(chosen) == 2
    return sorted(chosen)


def view(**values: str) -> tuple[Replica, ...]:
    return replicas(" | ".join(f"{name} {values.get(name, '')}" for name in NAMES))


def test_a_prompt_has_two_homes_whatever_the_order_and_what_follows() -> None:
    policy, homes = after_others(), pair(prompt(2000))
    for number in range(10):
        longer = replace(prompt(2000), blocks=prompt(2000).blocks[:8] + prompt(2000, number + 1).blocks[8:])
        assert policy.choose(longer, IDLE[::-1]).replica in homes, "the first 128 tokens are 8 blocks"


def test_pairs_spread() -> None:
    counts = Counter(name for number in range(80) for name in pair(prompt(300, number)))
    assert all(5 <= counts[name] <= 45 for name in NAMES), "20 each on average"


def test_by_hand() -> None:
    request = prompt(1601)  # 100 blocks of 16 and one token
    one, other = pair(request)
    policy = after_others(budget_tokens=1000)
    assert policy.choose(request, view(**{one: "m=50 p=199"})) == Choice(one, "prefix"), "801 + 199 is within 1000"
    assert policy.choose(request, view(**{one: "m=50 p=200 ", other: "p=900"})) == Choice(one, "budget"), "1001 < 2501"
    assert policy.choose(request, view(**{one: "m=50 p=900"})) == Choice(other, "budget"), "1701 > 1601"
    assert policy.choose(request, view(**{one: "m=50 p=9", other: "m=51 p=9"})) == Choice(other, "prefix")
    assert policy.choose(request, view(**{one: "p=9", other: "f=9"})) == Choice(other, "load"), "equal matches"
    elsewhere = {name: "m=99" for name in NAMES if name not in (one, other)}
    assert policy.choose(request, view(**elsewhere, **{one: "p=9"})) == Choice(other, "load"), "others do not count"


def test_the_default_budget_is_five_seconds_at_the_paper_s_rate() -> None:
    request = prompt(1601)
    one, other = pair(request)
    assert after_others().choose(request, view(**{one: "m=100 p=31249"})) == Choice(one, "prefix")
    assert after_others().choose(request, view(**{one: "m=100 p=31250"})) == Choice(other, "budget")


def test_a_head_that_all_share_is_told_apart_behind_it() -> None:
    """8 replicas: hot is more than a quarter. Each conversation behind the head has a pair of its own, and keeps it."""
    policy = DualMap()
    head = sample_request(0, blocks=80).blocks
    talks = [
        replace(prompt(2000, number), blocks=head + prompt(720, number + 1).blocks)
        for _ in range(6)
        for number in range(12)
    ]
    chosen = [policy.choose(talk, IDLE).replica for talk in talks][12:]
    homes = [set(chosen[number::12]) for number in range(12)]
    assert all(len(names) <= 2 for names in homes)
    assert len(set().union(*homes)) >= 6


def test_two_replicas_are_always_the_pair() -> None:
    counts = Counter(DualMap(seed=seed).choose(prompt(300, seed), IDLE[:2]).replica for seed in range(40))
    assert min(counts["r0"], counts["r1"]) > 8


def test_without_blocks_the_least_backlog_of_all() -> None:
    assert DualMap().choose(prompt(10), replicas("a p=5 | b p=4 | c p=9")) == Choice("b", "load")
    assert DualMap().choose(prompt(10), replicas("a p=5")) == Choice("a", "only")


def test_a_short_prompt_hashes_what_it_has() -> None:
    assert len(pair(prompt(40))) == 2


@pytest.mark.parametrize(("share", "expected"), [(0.5, b"1"), (0.49, b"12"), (0.25, b"12"), (0.24, b"123")])
def test_hot_is_more_than_the_share(share: float, expected: bytes) -> None:
    popularity = Popularity(4)
    for prefixes in ([b"2"], [b"1", b"13"], [b"3"]):
        popularity.not_hot(prefixes, share)
    assert popularity.not_hot([b"1", b"12", b"123"], share) == expected, "2, 1 and 1 of 4"


def test_what_cools_down_is_short_again() -> None:
    popularity = Popularity(4)
    assert [popularity.not_hot([b"1", b"12"], 0.25) for _ in range(3)] == [b"12"] * 3
    for number in range(4):
        popularity.not_hot([bytes([number])], 0.25)
    assert popularity.not_hot([b"1", b"12"], 0.25) == b"1"


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=60), st.integers(1, 9))
def test_memory_is_the_window_s(prompts: list[list[int]], window: int) -> None:
    popularity = Popularity(window)
    for tokens in prompts:
        prefixes = [bytes(tokens[: depth + 1]) for depth in range(len(tokens))]
        assert popularity.not_hot(prefixes, 0.5) in prefixes
        assert len(popularity) <= 4 * window
        assert sum(popularity._counts.values()) == sum(map(len, popularity._requests))
    for _ in range(window):
        popularity.not_hot([b"other"], 1.0)
    assert len(popularity) == 1
