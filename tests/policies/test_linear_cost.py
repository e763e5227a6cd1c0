"""Weighted prefill blocks plus decode blocks, the cheapest or by chance."""

import math
from collections import Counter

import pytest

from policies.active import SPAN_BLOCKS
from policies.linear_cost import LinearCost, softmax
from policies.types import Choice
from tests.policies.views import prompt, replicas


def after(*sent: tuple[str, int], weight: float = 1.0, temperature: float = 0.0) -> LinearCost:
    """A policy that has sent prompts of so many blocks to these replicas, each alone and unlike the others."""
    policy = LinearCost(overlap_weight=weight, temperature=temperature)
    for number, (name, blocks) in enumerate(sent, 1):
        policy.choose(prompt(16 * blocks, number), replicas(f"{name} f=9"))
    return policy


def test_the_example_of_dynamo_s_documentation() -> None:
    """10 blocks, 2, 5 and 8 cached, 10, 5 and 9 in decoding: 8 + 10, 5 + 5 and 2 + 9, and its own 10 everywhere."""
    view = replicas("w1 m=2 f=1 | w2 m=5 f=1 | w3 m=8 f=1")
    sent = (("w1", 10), ("w2", 5), ("w3", 9))
    assert after(*sent).choose(prompt(160), view) == Choice("w2", "cost")
    assert after(*sent, weight=2).choose(prompt(160), view) == Choice("w3", "cost"), "26, 15 and 13"
    assert after(*sent, weight=0).choose(prompt(160), view) == Choice("w2", "cost"), "load alone"


def test_pending_prefill_is_work_too() -> None:
    policy = LinearCost()
    assert policy.choose(prompt(160), replicas("r1 m=5 p=96 | r2")) == Choice("r2", "cost"), "6 + 5 against 10"
    assert LinearCost().choose(prompt(160), replicas("r1 m=5 p=64 | r2")) == Choice("r1", "cost"), "4 + 5 against 10"


def test_prompts_that_ended_do_not_count() -> None:
    policy = after(("r1", 10), ("r1", 20))
    assert policy.choose(prompt(160), replicas("r1 f=1 m=5 | r2 f=16")) == Choice("r2", "cost"), "20 + 5 against 10"
    policy = after(("r1", 20), ("r1", 4))
    assert policy.choose(prompt(160), replicas("r1 f=1 m=5 | r2 f=16")) == Choice("r1", "cost"), "4 + 5 against 10"


def test_a_head_in_use_is_not_added_again() -> None:
    """33 blocks, 32 of them in use on r1: 33 + 1 after it, and 33 on r2, but 1 to prefill against 33."""
    request = prompt(16 * SPAN_BLOCKS + 1)
    policy = LinearCost()
    policy.choose(request, replicas("r1"))
    assert policy.choose(request, replicas("r1 f=1 | r2")) == Choice("r2", "cost"), "33 + 34 against 33 + 33"
    assert policy.choose(request, replicas(f"r1 f=1 m={SPAN_BLOCKS} | r2 p=0")) == Choice("r1", "cost")


def test_softmax_by_hand() -> None:
    """Costs 10, 15 and 20 are 0, 1/2 and 1 of their range."""
    assert softmax([10, 15, 20], 1.0) == pytest.approx([1, math.exp(-0.5), math.exp(-1)])
    assert softmax([10, 15, 20], 0.25) == pytest.approx([1, math.exp(-2), math.exp(-4)])
    assert softmax([7, 7], 0.25) == [1, 1]


def test_a_temperature_draws() -> None:
    """10 blocks, 8 cached on r1: costs 12 and 20, chances 1 and 1/e at temperature 1."""
    counts = Counter(
        LinearCost(temperature=1.0, seed=seed).choose(prompt(160), replicas("r1 m=8 | r2")) for seed in range(400)
    )
    assert counts.keys() == {Choice("r1", "softmax"), Choice("r2", "softmax")}
    assert counts[Choice("r2", "softmax")] / 400 == pytest.approx(1 / (1 + math.e), abs=0.07)


def test_equals_are_drawn_among() -> None:
    counts = Counter(LinearCost(seed=seed).choose(prompt(160), replicas("r1 | r2 | r3 p=1")) for seed in range(100))
    assert counts.keys() == {Choice("r1", "tie"), Choice("r2", "tie")}
    assert min(counts.values()) > 25


def test_one_replica_and_an_unread_prompt() -> None:
    assert LinearCost().choose(prompt(160), replicas("r1 p=9")) == Choice("r1", "only")
    assert LinearCost().choose(prompt(0), replicas("r1 p=9 | r2")) == Choice("r2", "cost")
