"""Ours pass; a policy that breaks one rule fails the check of that rule."""

import random
from collections.abc import Callable, Sequence
from itertools import count
from operator import add

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import Choice, Policy, Replica, Request
from policies.conformance import (
    CHECKS,
    Factory,
    check,
    chooses_what_is_offered,
    goes_on_in_a_copy,
    repeats_itself,
    sample_replicas,
    sample_request,
    takes_packed_keys,
    uses_every_idle_replica,
    works_with_one,
    works_with_unknowns,
)
from policies.plugins import installed, load
from tests.policies.views import any_view

View = tuple[Request, tuple[Replica, ...]]


OURS = [info.name for info in installed() if info.distribution == "prefix-router"]


@pytest.mark.parametrize("one", CHECKS)
@pytest.mark.parametrize("name", OURS)
def test_ours_conform(name: str, one: Callable[[Factory], None]) -> None:
    one(lambda: load(name))


@pytest.mark.parametrize("name", OURS)
@settings(max_examples=25)
@given(views=st.lists(any_view(), max_size=15), seed=st.integers(0, 9))
def test_ours_choose_what_is_offered_and_repeat_themselves(name: str, views: list[View], seed: int) -> None:
    one, other = load(name, seed=seed), load(name, seed=seed)
    for request, view in views:
        choice = one.choose(request, view)
        assert choice.replica in [replica.name for replica in view]
        assert choice.reason == choice.reason.lower().strip()
        assert other.choose(request, view) == choice


class Drawn:
    """Dice that take the first and tell among whom they drew."""

    def __init__(self) -> None:
        self.among: list[set[str]] = []

    def choice(self, replicas: Sequence[Replica]) -> Replica:
        self.among.append({replica.name for replica in replicas})
        return replicas[0]


CALCULATING = [
    "cache-aware",
    "dualmap",
    "linear-cost",
    "lmetric",
    "preble-e2",
    "prefix-hash",
    "sticky-until-saturated",
    "weighted-scorers",
]
"""Those that leave to chance nothing but equals."""


@pytest.mark.parametrize("name", CALCULATING)
@settings(max_examples=50)
@given(view=any_view(), order=st.randoms(use_true_random=False))
def test_the_order_of_replicas_decides_nothing(name: str, view: View, order: random.Random) -> None:
    request, replicas = view
    shuffled = order.sample(replicas, len(replicas))
    found = []
    for offered in (replicas, shuffled):
        policy, dice = load(name), Drawn()
        policy._dice = dice  # type: ignore[attr-defined]
        choice = policy.choose(request, tuple(offered))
        found.append(dice.among[-1:] or [{choice.replica}])
    assert found[0] == found[1]


class Named:
    """A policy that returns just a name."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> str:
        return min(replicas, key=lambda replica: hash((request.prompt_tokens, request.user, replica.name)) & 0xFF).name


def test_a_name_is_a_choice() -> None:
    check(Named)  # type: ignore[arg-type]


class Remembers:
    """Sticks to the first replica it ever saw."""

    def __init__(self) -> None:
        self._name: str | None = None

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        self._name = self._name or replicas[-1].name
        return Choice(self._name, "old love")


class NeedsReports:
    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        return Choice(min(replicas, key=lambda replica: replica.capacity_blocks / 1).name, "space")  # type: ignore[operator]


class NeedsTwo:
    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        return Choice(replicas[0].name if len(replicas) > 1 else "none", "second")


class First:
    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        return Choice(replicas[0].name, "first")


def dice() -> Callable[[], Policy]:
    """Every policy it makes draws on, where a fresh one should begin again."""
    drawn = count()

    class Dice:
        def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
            return Choice(replicas[next(drawn) % 7 % len(replicas)].name, "dice")

    return Dice


class Shared:
    """Takes turns by a count that a copy shares."""

    def __init__(self) -> None:
        turns = count()
        self._next = lambda: next(turns)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        return Choice(replicas[self._next() % len(replicas)].name, "turn")


class NeedsTuples:
    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        more = add(request.blocks, (b"",))
        return Choice(replicas[len(more) % len(replicas)].name, "length")


@pytest.mark.parametrize(
    ("factory", "broken", "error"),
    [
        (Remembers, chooses_what_is_offered, AssertionError),
        (NeedsReports, works_with_unknowns, TypeError),
        (NeedsTwo, works_with_one, AssertionError),
        (dice(), repeats_itself, AssertionError),
        (Shared, goes_on_in_a_copy, AssertionError),
        (NeedsTuples, takes_packed_keys, TypeError),
        (First, uses_every_idle_replica, AssertionError),
    ],
)
def test_a_broken_rule_is_named(factory: Factory, broken: Callable[[Factory], None], error: type[Exception]) -> None:
    with pytest.raises(error):
        broken(factory)
    with pytest.raises(error):
        check(factory)


def test_samples_repeat() -> None:
    assert sample_request(3) == sample_request(3) != sample_request(4)
    assert sample_replicas(3) == sample_replicas(3) != sample_replicas(4)
    assert len(sample_request(blocks=7).blocks) == 7
