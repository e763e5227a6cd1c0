"""Tokens to compute, and the cheapest with equals drawn."""

import random
from collections import Counter

import pytest

from policies.costs import backlog_tokens, cheapest, uncached_tokens
from tests.policies.views import prompt, replicas


@pytest.mark.parametrize(
    ("tokens", "view", "uncached", "backlog"),
    [
        (100, "r1", 100, 100),
        (100, "r1 m=6 p=30", 4, 34),
        (100, "r1 m=7 p=30", 0, 30),
        (0, "r1 p=5", 0, 5),
    ],
)
def test_what_is_matched_need_not_be_computed(tokens: int, view: str, uncached: int, backlog: int) -> None:
    [replica] = replicas(view)
    assert uncached_tokens(prompt(tokens), replica) == uncached
    assert backlog_tokens(prompt(tokens), replica) == backlog


def test_one_is_the_cheapest() -> None:
    view = replicas("r1 | r2 | r3")
    assert cheapest(view, [3, 1, 2], random.Random(0)) == (view[1], False)


def test_equals_are_drawn_among() -> None:
    view, dice = replicas("r1 | r2 | r3 | r4"), random.Random(0)
    drawn = [cheapest(view, [1, 2, 1, 1], dice) for _ in range(300)]
    assert all(equal for _, equal in drawn)
    counts = Counter(replica.name for replica, _ in drawn)
    assert counts.keys() == {"r1", "r3", "r4"}
    assert min(counts.values()) > 70
