"""Exploit what is longer than the rest, else explore for the least of load, eviction and own cost."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.preble_e2 import PrebleE2
from policies.types import Choice, Replica, Request
from tests.policies.views import any_view, prompt, replicas


def after(*sent: tuple[str, int], **settings: float) -> PrebleE2:
    """A policy that has sent prompts of so many tokens to these replicas, with answers that cost nothing."""
    policy = PrebleE2(output_token_cost=0, **settings)  # type: ignore[arg-type]
    for name, tokens in sent:
        policy.choose(prompt(tokens), replicas(name))
    return policy


def test_more_cached_than_the_rest_is_exploited() -> None:
    """161 tokens: 6 blocks leave 65 < 96, 5 leave 81 > 80."""
    policy = after(("r1", 100), ("r2", 100))
    assert policy.choose(prompt(161), replicas("r1 | r2 m=6")) == Choice("r2", "exploit")
    assert after(("r1", 99), ("r2", 100)).choose(prompt(161), replicas("r1 m=5 | r2")).reason == "explore"


def test_of_the_longest_matches_the_least_load() -> None:
    policy = after(("r1", 300), ("r2", 290), ("r3", 250))
    assert policy.choose(prompt(161), replicas("r1 m=9 | r2 m=9 | r3 m=8")) == Choice("r2", "exploit")


def test_exploring_by_hand() -> None:
    """L + M + P with nothing to evict: 100 + 161 on r1, 150 + 97 on r2, 400 + 161 on r3."""
    view = replicas("r1 n=999 | r2 m=4 n=999 | r3 n=999")
    assert after(("r1", 100), ("r2", 150), ("r3", 400)).choose(prompt(161), view) == Choice("r2", "explore")
    assert after(("r1", 100), ("r2", 165), ("r3", 400)).choose(prompt(161), view) == Choice("r1", "explore")


def test_what_an_answer_costs() -> None:
    """2 requests of 50 tokens with 45 x 20 of answer each outweigh one of 1800 with its own: 1900 against 2700."""
    policy = PrebleE2()
    for name, tokens in (("r1", 50), ("r1", 50), ("r2", 1000)):
        policy.choose(prompt(tokens), replicas(name))
    assert [policy._loads[name].cost for name in ("r1", "r2")] == [1900, 1900]
    policy.choose(replace(prompt(50), max_output_tokens=10), replicas("r1"))
    assert policy._loads["r1"].cost == 1900 + 50 + 10 * 20


def test_evicting_by_hand() -> None:
    """r1's one request found 96 cached tokens of 160 held, 0.6 of each; this prompt evicts 33 + 160 - 176 = 17."""
    policy = PrebleE2(output_token_cost=0)
    policy.choose(prompt(100), replicas("r1 m=6"))
    full, roomy = replicas("r1 h=10 n=11 | r2 h=10 n=99")
    assert policy._cost(prompt(33), full) == 4 + 17 * 0.6 + 33
    assert policy._cost(prompt(33), roomy) == 33
    unknown = replicas("r1 h=10")[0]
    assert policy._cost(prompt(33), unknown) == 4 + 33 * 0.6 + 33, "of unknown size is full"


def test_the_fullest_loses_its_own_prefix_to_the_calmest() -> None:
    view = replicas("r1 m=9 | r2 | r3")
    assert after(("r1", 150), ("r2", 100), ("r3", 120)).choose(prompt(161), view) == Choice("r1", "exploit")
    assert after(("r1", 151), ("r2", 100), ("r3", 120)).choose(prompt(161), view) == Choice("r2", "balance")
    assert after(("r1", 151), ("r2", 100), ("r3", 152)).choose(prompt(161), view) == Choice("r1", "exploit")
    assert after(("r1", 151), ("r2", 100), balance_ratio=2).choose(prompt(161), replicas("r1 m=9 | r2")).replica == "r1"


def test_the_window_moves_on() -> None:
    policy = after(("r1", 500), ("r2", 10), ("r2", 10), window_requests=3)
    assert policy._loads["r1"].cost == 500
    policy.choose(prompt(20), replicas("r2"))
    assert policy._loads.keys() == {"r2"}
    assert policy._loads["r2"].cost == 40
    assert policy._loads["r2"].requests == 3


def test_equals_are_drawn_among() -> None:
    counts = Counter(PrebleE2(seed=seed).choose(prompt(161), replicas("r1 | r2 | r3")).replica for seed in range(150))
    assert min(counts["r1"], counts["r2"], counts["r3"]) > 25


@settings(max_examples=50)
@given(st.lists(any_view(), max_size=40), st.integers(1, 10))
def test_load_is_the_sum_over_the_window(views: list[tuple[Request, tuple[Replica, ...]]], window: int) -> None:
    policy = PrebleE2(window_requests=window)
    for request, view in views:
        policy.choose(request, view)
    assert len(policy._window) == min(window, len(views))
    for name, load in policy._loads.items():
        entries = [entry for entry in policy._window if entry[0] == name]
        assert load.requests == len(entries) > 0
        assert load.cost == sum(entry[1] for entry in entries)
        assert load.cached_tokens == sum(entry[2] for entry in entries) >= 0
