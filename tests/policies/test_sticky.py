"""Warm ones only, until they are too far behind."""

from collections import Counter

import pytest

from policies.sticky import StickyUntilSaturated
from policies.types import Choice
from tests.policies.views import prompt, replicas

GATE = 18 * 15_928
"""286,704 tokens."""


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        # 161 tokens: 10 blocks of 16, warm from 8
        pytest.param("r1 m=8 f=9 p=5000 | r2", Choice("r1", "sticky"), id="stays"),
        pytest.param("r1 m=7 | r2 f=9", Choice("r1", "cold"), id="7 of 10 is not warm, but less to compute"),
        pytest.param("r1 m=7 p=113 | r2", Choice("r2", "cold"), id="113 + 49 against 161"),
        pytest.param("r1 m=8 p=33 | r2 m=10 p=66 | r3", Choice("r1", "sticky"), id="33 + 33 against 66 + 1 among warm"),
        pytest.param("r1 m=8 p=35 | r2 m=10 p=66 | r3", Choice("r2", "sticky"), id="35 + 33 against 66 + 1"),
        pytest.param(f"r1 m=10 p={GATE} | r2", Choice("r1", "sticky"), id="just not too far behind"),
        pytest.param(f"r1 m=10 p={GATE + 1} | r2", Choice("r2", "saturated"), id="too far behind"),
        pytest.param(f"r1 m=10 p={GATE + 9} | r2 p=9", Choice("r1", "sticky"), id="the best cold one waits too"),
        pytest.param(f"r1 m=10 p={GATE + 9} | r2 | r3 m=9 p=5", Choice("r3", "sticky"), id="another warm one is calm"),
        pytest.param("r1 m=8 p=999999 | r2 m=9", Choice("r2", "sticky"), id="no cold one, no gate"),
        pytest.param("r1 p=9", Choice("r1", "only"), id="one replica"),
    ],
)
def test_by_hand(view: str, expected: Choice) -> None:
    assert StickyUntilSaturated().choose(prompt(161), replicas(view)) == expected


def test_the_gate_is_seconds_times_tokens_a_second() -> None:
    policy = StickyUntilSaturated(max_ttft_penalty_s=0.5, peak_prefill_tokens_per_s=1000)
    assert policy.choose(prompt(161), replicas("r1 m=10 p=500 | r2")) == Choice("r1", "sticky")
    assert policy.choose(prompt(161), replicas("r1 m=10 p=501 | r2")) == Choice("r2", "saturated")


def test_an_open_gate_lets_load_decide_which_may_stay() -> None:
    policy = StickyUntilSaturated(max_ttft_penalty_s=0.1, peak_prefill_tokens_per_s=1000)
    assert policy.choose(prompt(161), replicas("r1 m=10 p=159 | r2")) == Choice("r1", "saturated"), "160 against 161"


def test_penalty_0_sticks_for_ever() -> None:
    policy = StickyUntilSaturated(max_ttft_penalty_s=0)
    assert policy.choose(prompt(161), replicas("r1 m=10 p=9999999 | r2")) == Choice("r1", "sticky")


def test_threshold_0_is_no_gate() -> None:
    policy = StickyUntilSaturated(affinity_threshold=0)
    assert policy.choose(prompt(161), replicas("r1 m=10 p=161 | r2")) == Choice("r2", "cold")


def test_by_requests_for_decode_bound_traffic() -> None:
    policy = StickyUntilSaturated(load="requests")
    assert policy.choose(prompt(161), replicas("r1 m=8 f=2 | r2 m=10 f=3 | r3")) == Choice("r1", "sticky")


def test_exploring_skips_the_gate_as_often_as_set() -> None:
    policy = StickyUntilSaturated(exploration_probability=0.25)
    counts = Counter(policy.choose(prompt(161), replicas("r1 m=10 p=900 | r2")) for _ in range(400))
    assert counts.keys() == {Choice("r1", "sticky"), Choice("r2", "explore")}
    assert 70 <= counts[Choice("r2", "explore")] <= 130


def test_equals_are_drawn_among() -> None:
    policy = StickyUntilSaturated()
    counts = Counter(policy.choose(prompt(161), replicas("r1 m=9 | r2 m=9 | r3")).replica for _ in range(200))
    assert counts.keys() == {"r1", "r2"}
    assert min(counts.values()) > 60


def test_an_unread_prompt_has_no_warm_replica() -> None:
    assert StickyUntilSaturated().choose(prompt(0), replicas("r1 p=1 | r2")) == Choice("r2", "cold")
