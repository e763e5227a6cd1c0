"""Runs of ids: lossless, maximal, and honest about ids that are not chained."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.traces.runs import after, chained, count_of, cut, merged, runs_of, spread, unique_count

IDS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1)), max_size=30)


@given(IDS)
def test_there_and_back(ids):
    runs = runs_of(ids)
    assert spread(runs).tolist() == ids
    assert count_of(runs) == len(ids)
    assert all(left[1] + 1 != right[0] for left, right in pairwise(runs))


@given(IDS, st.integers(0, 40))
def test_cut_and_after_are_the_two_parts(ids, count):
    runs = runs_of(ids)
    assert spread(cut(runs, count)).tolist() == ids[:count]
    assert spread(after(runs, count)).tolist() == ids[count:]


def test_negative_ids_are_their_bits():
    assert runs_of([-1, 5]) == ((2**64 - 1, 2**64 - 1), (5, 5))


@pytest.mark.parametrize("ids", [["a"], [1.5], [True], [None], [1, "2"]])
def test_what_is_no_whole_number_is_told(ids):
    with pytest.raises(ValueError, match="no whole number"):
        runs_of(ids)


@pytest.mark.parametrize("pairs", [[[3, 2]], [[1, 2.0]], [["a", "b"]]])
def test_what_is_no_range_is_told(pairs):
    with pytest.raises(ValueError, match="range of ids"):
        merged(pairs)


def columns(prompts):
    rows = [runs_of(prompt) for prompt in prompts if prompt]
    flat = [pair for runs in rows for pair in runs]
    firsts = np.array([first for first, _ in flat], np.uint64)
    lasts = np.array([last for _, last in flat], np.uint64)
    rooted = np.array([place == 0 for runs in rows for place in range(len(runs))], bool)
    before = np.concatenate((np.zeros(1, np.uint64), lasts[:-1])) if len(lasts) else lasts
    return firsts, lasts, before, rooted


@given(st.lists(st.lists(st.integers(0, 6), max_size=6, unique=True), max_size=8))
def test_chained_and_unique_are_as_counted_one_by_one(prompts):
    came: dict[int, set[int]] = {}
    for prompt in prompts:
        for place, number in enumerate(prompt):
            came.setdefault(number, set()).add(prompt[place - 1] if place else -1)
    firsts, lasts, before, rooted = columns(prompts)
    assert chained(firsts, lasts, before, rooted) == all(len(before) == 1 for before in came.values())
    assert unique_count(firsts, lasts) == len(came)
