"""Of two that are drawn, the calmer one."""

from collections import Counter

import pytest

from policies.power_of_two import PowerOfTwo
from policies.types import Choice
from tests.policies.views import prompt, replicas


def test_of_two_the_calmer() -> None:
    policy = PowerOfTwo()
    assert {policy.choose(prompt(100), replicas("r1 f=3 m=6 | r2 f=2")) for _ in range(50)} == {Choice("r2", "load")}
    assert policy.choose(prompt(100), replicas("r1")) == Choice("r1", "only")


def test_of_equals_either() -> None:
    policy = PowerOfTwo()
    counts = Counter(policy.choose(prompt(100), replicas("r1 f=2 | r2 f=2")) for _ in range(200))
    assert counts.keys() == {Choice("r1", "tie"), Choice("r2", "tie")}
    assert min(counts.values()) > 60


def test_the_two_are_different() -> None:
    """By hand: of 4 with loads 0 to 3, the calmest wins 3 of 6 pairs, the next 2, then 1, the busiest none."""
    policy = PowerOfTwo()
    counts = Counter(policy.choose(prompt(100), replicas("a f=0 | b f=1 | c f=2 | d f=3")).replica for _ in range(1200))
    assert counts["d"] == 0
    assert [counts[name] / 200 for name in "abc"] == pytest.approx([3, 2, 1], abs=0.35)
