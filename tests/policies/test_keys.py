"""Packed keys are a sequence of keys like any other."""

from collections.abc import Sequence
from copy import copy, deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.index import PrefixIndex
from policies.keys import Keys, continued, packed_keys

KEY_LISTS = st.lists(st.binary(min_size=16, max_size=16), max_size=20)
ENDS = st.none() | st.integers(-25, 25)


def packed(keys: list[bytes]) -> Keys:
    return Keys(b"".join(keys))


@given(KEY_LISTS, ENDS, ENDS, st.sampled_from([None, 1, 2, -1, 7]))
def test_they_are_what_a_tuple_of_them_is(keys: list[bytes], start: int | None, stop: int | None, step: int | None):
    plain, ours = tuple(keys), packed(keys)
    assert isinstance(ours, Sequence)
    assert len(ours) == len(plain)
    assert bool(ours) is bool(plain)
    assert tuple(ours) == plain
    assert tuple(reversed(ours)) == plain[::-1]
    assert tuple(ours[start:stop:step]) == plain[start:stop:step]
    assert ours == plain
    assert plain == ours
    assert ours == packed(keys)
    assert hash(ours) == hash(plain)
    for place in range(-len(plain), len(plain)):
        assert ours[place] == plain[place]


@pytest.mark.parametrize("place", [2, -3, 100])
def test_a_place_beyond_them_is_no_key(place: int):
    with pytest.raises(IndexError, match=f"no key {place} of 2"):
        packed([b"a" * 16, b"b" * 16])[place]


def test_they_differ_from_other_keys_and_from_what_is_no_sequence_of_keys():
    ours = packed([b"a" * 16, b"b" * 16])
    assert ours != packed([b"a" * 16])
    assert ours != (b"b" * 16, b"a" * 16)
    assert ours != b"a" * 16 + b"b" * 16
    assert b"a" * 16 in ours
    assert b"c" * 16 not in ours
    assert repr(ours) == "<Keys of 2 blocks>"


@pytest.mark.parametrize("copied", [copy, deepcopy])
def test_they_can_be_copied(copied):
    ours = packed([b"a" * 16, b"b" * 16])
    assert copied(ours) == ours


@given(KEY_LISTS, KEY_LISTS, st.booleans(), st.booleans())
def test_keys_are_continued_in_any_form(first: list[bytes], more: list[bytes], one: bool, other: bool):
    whole = continued(packed(first) if one else tuple(first), packed(more) if other else tuple(more))
    assert tuple(whole) == (*first, *more)
    for start in range(len(first) + 1):
        assert packed_keys(packed(first), start) == packed_keys(tuple(first), start) == b"".join(first[start:])


@given(st.lists(st.text("abc", max_size=6), max_size=8))
def test_an_index_finds_the_same_for_packed_keys(prompts: list[str]):
    chained = [[prompt[: at + 1].rjust(16).encode() for at in range(len(prompt))] for prompt in prompts]
    ours, plain = PrefixIndex(unknown_capacity_blocks=9), PrefixIndex(unknown_capacity_blocks=9)
    for index in (ours, plain):
        for name in ("r1", "r2"):
            index.joined(name)
    for turn, keys in enumerate(chained):
        assert ours.found(packed(keys)) == plain.found(tuple(keys))
        ours.recorded(f"r{turn % 2 + 1}", packed(keys))
        plain.recorded(f"r{turn % 2 + 1}", tuple(keys))
    for keys in chained:
        assert ours.found(packed(keys)) == plain.found(tuple(keys))
