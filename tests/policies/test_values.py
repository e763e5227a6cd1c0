"""The options of a struct that are inherited, since compiled modules can't give them."""

import gc

import pytest

from policies.values import Fixed, Loose, Value


class Told(Value, frozen=True):
    name: str
    blocks: int = 0


class Kept(Fixed, frozen=True):
    names: list[str]


class Counted(Loose):
    blocks: int = 0


def test_a_value_can_not_be_changed_and_is_equal_by_what_it_holds():
    told = Told("r1", 3)
    with pytest.raises(AttributeError):
        told.blocks = 4
    assert told == Told("r1", blocks=3) != Told("r1")
    assert hash(told) == hash(Told("r1", 3))


def test_what_is_fixed_can_not_be_changed_but_is_followed_by_the_garbage_collector():
    kept = Kept(["r1"])
    with pytest.raises(AttributeError):
        kept.names = []
    assert gc.is_tracked(kept)


def test_values_and_loose_structs_are_nothing_for_the_garbage_collector():
    counted = Counted()
    counted.blocks = 2
    assert counted == Counted(2)
    assert not gc.is_tracked(counted)
    assert not gc.is_tracked(Told("r1"))
