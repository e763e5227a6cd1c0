"""Load is work, not a count; ties have no favourite."""

from collections import Counter

import pytest
from msgspec.structs import replace

from policies.conformance import sample_replicas, sample_request
from policies.least_loaded import LeastLoaded, work_tokens
from policies.types import Choice, Replica

Loads = list[tuple[int, int, float]]
"""Requests in flight, tokens pending, weight."""


def replicas(loads: Loads) -> tuple[Replica, ...]:
    return tuple(
        replace(replica, in_flight=in_flight, pending_prefill_tokens=pending, weight=weight)
        for replica, (in_flight, pending, weight) in zip(sample_replicas(count=len(loads)), loads, strict=True)
    )


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        pytest.param([(3, 0, 1.0), (1, 0, 1.0)], Choice("r1", "load"), id="fewer requests"),
        pytest.param([(1, 100_000, 1.0), (3, 150, 1.0)], Choice("r1", "load"), id="one long against three short"),
        pytest.param([(2, 0, 1.0), (3, 0, 2.0)], Choice("r1", "load"), id="twice as fast"),
        pytest.param([(9, 9, 1.0)], Choice("r0", "only"), id="one"),
    ],
)
def test_the_least_work_wins(loads: Loads, expected: Choice) -> None:
    assert LeastLoaded().choose(sample_request(), replicas(loads)) == expected


def test_work_is_prefill_and_requests_over_speed() -> None:
    assert work_tokens(replicas([(3, 100, 2.0)])[0], 50.0) == 125.0


def test_a_request_in_flight_can_count_for_more() -> None:
    loads: Loads = [(1, 300, 1.0), (3, 0, 1.0)]
    assert LeastLoaded(in_flight_tokens=64).choose(sample_request(), replicas(loads)).replica == "r1"
    assert LeastLoaded(in_flight_tokens=256).choose(sample_request(), replicas(loads)).replica == "r0"


def test_ties_are_spread_and_repeat_with_the_seed() -> None:
    idle = replicas([(0, 0, 1.0)] * 3)

    def chosen(seed: int) -> list[Choice]:
        policy = LeastLoaded(seed=seed)
        return [policy.choose(sample_request(), idle) for _ in range(200)]

    counts = Counter(choice.replica for choice in chosen(1))
    assert all(45 <= counts[f"r{number}"] <= 90 for number in range(3))
    assert {choice.reason for choice in chosen(1)} == {"tie"}
    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
