"""Each replica in turn."""

from collections import Counter

from policies.conformance import sample_replicas, sample_request
from policies.round_robin import RoundRobin


def test_it_takes_turns() -> None:
    policy = RoundRobin()
    chosen = [policy.choose(sample_request(), sample_replicas(count=3)) for _ in range(7)]
    assert [choice.replica for choice in chosen] == ["r0", "r1", "r2", "r0", "r1", "r2", "r0"]
    assert {choice.reason for choice in chosen} == {"turn"}


def test_it_goes_on_when_the_fleet_changes() -> None:
    policy = RoundRobin()
    counts = Counter(
        policy.choose(sample_request(), sample_replicas(count=2 + number // 100)).replica for number in range(300)
    )
    assert set(counts) == {"r0", "r1", "r2", "r3"}
    assert counts["r3"] == 25
