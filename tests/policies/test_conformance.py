"""Ours pass; a policy that breaks one rule fails the check of that rule."""

from collections.abc import Callable, Sequence
from itertools import count

import pytest

from policies import Choice, Policy, Replica, Request
from policies.conformance import (
    CHECKS,
    Factory,
    check,
    chooses_what_is_offered,
    repeats_itself,
    sample_replicas,
    sample_request,
    uses_every_idle_replica,
    works_with_one,
    works_with_unknowns,
)
from policies.least_loaded import LeastLoaded
from policies.prefix_aware import PrefixAware
from policies.round_robin import RoundRobin
from policies.user_hash import UserHash


@pytest.mark.parametrize("one", CHECKS)
@pytest.mark.parametrize("factory", [RoundRobin, LeastLoaded, UserHash, PrefixAware])
def test_ours_conform(factory: Factory, one: Callable[[Factory], None]) -> None:
    one(factory)


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


@pytest.mark.parametrize(
    ("factory", "broken", "error"),
    [
        (Remembers, chooses_what_is_offered, AssertionError),
        (NeedsReports, works_with_unknowns, TypeError),
        (NeedsTwo, works_with_one, AssertionError),
        (dice(), repeats_itself, AssertionError),
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
