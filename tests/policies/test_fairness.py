"""Deficit round robin: who floods waits for itself, who is cached pays little, and nobody starves."""

from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.fairness import DeficitRounds


class Queue:
    """A queue in the order of rounds, and of arrival within one."""

    def __init__(self, quantum_tokens: int) -> None:
        self.rounds = DeficitRounds(quantum_tokens)
        self.heap: list[tuple[int, int, str, int]] = []
        self.numbers = count()

    def push(self, tenant: str, tokens: int) -> None:
        heappush(self.heap, (self.rounds.of(tenant, tokens), next(self.numbers), tenant, tokens))

    def pop(self) -> tuple[str, int]:
        turn, _, tenant, tokens = heappop(self.heap)
        self.rounds.served(turn)
        return tenant, tokens


def test_a_flood_does_not_starve_a_late_comer():
    queue = Queue(1000)
    for _ in range(100):
        queue.push("flood", 1000)
    for _ in range(10):
        queue.pop()
    queue.push("late", 800)
    assert [queue.pop()[0] for _ in range(3)].count("late") == 1


def test_tenants_get_equal_tokens_whatever_their_requests_are_like():
    queue = Queue(500)
    for number in range(400):
        queue.push("small", 100)
        if number % 8 == 0:
            queue.push("large", 2000)
    sums = {"small": 0, "large": 0}
    for _ in range(200):
        tenant, tokens = queue.pop()
        sums[tenant] += tokens
    assert abs(sums["small"] - sums["large"]) <= 2000 + 500


def test_cached_prompts_cost_their_tenant_little():
    queue = Queue(1000)
    for _ in range(50):
        queue.push("cold", 1000)
        queue.push("warm", 20)
    first = [queue.pop()[0] for _ in range(51)]
    assert first.count("warm") == 50


def test_who_waits_for_nothing_saves_up_nothing():
    rounds = DeficitRounds(100)
    assert [rounds.of("a", 100) for _ in range(4)] == [0, 1, 2, 3]
    assert rounds.of("b", 0) == 0
    rounds.served(3)
    assert [rounds.of("b", 100), rounds.of("b", 1)] == [3, 4]


def test_a_request_larger_than_a_round_waits_for_enough_of_them():
    rounds = DeficitRounds(100)
    assert [rounds.of("a", 250), rounds.of("a", 50), rounds.of("a", 1)] == [2, 2, 3]


@given(st.integers(1, 50), st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 200)), min_size=1, max_size=80))
@settings(deadline=None)
def test_while_two_wait_neither_gets_much_more(quantum, asked):
    """The bound of the paper: over any time in which both wait, at most a quantum and the largest request apart."""
    queue = Queue(quantum)
    for tenant, tokens in asked:
        queue.push(tenant, tokens)
    left = {tenant: [tokens for name, tokens in asked if name == tenant] for tenant in "abcd"}
    sums = dict.fromkeys("abcd", 0)
    largest = max(tokens for _, tokens in asked)
    while queue.heap:
        tenant, tokens = queue.pop()
        assert tokens == left[tenant].pop(0)
        sums[tenant] += tokens
        waiting = [name for name in "abcd" if left[name]]
        assert max((sums[name] for name in waiting), default=0) - min(
            (sums[name] for name in waiting), default=0
        ) <= 2 * (quantum + largest)


def test_memory_follows_those_who_wait():
    rounds = DeficitRounds(10)
    for number in range(50_000):
        rounds.served(rounds.of(f"tenant-{number}", 15))
        rounds.served(number // 4)
    assert len(rounds) <= 2100
    assert "tenants" in repr(rounds)


def test_a_round_of_nothing_is_no_round():
    with pytest.raises(ValueError, match="quantum_tokens"):
        DeficitRounds(0)
