"""Ratios of two sides: pairs, medians, and an interval that holds what it should."""

import numpy as np
import pytest

from router.bench.compare import compared, ratio_interval
from router.bench.results import Target
from router.usage import Usage
from tests.answers import OTHER, SIDE, answer, phase


def side(name, turn, ttfts, *, phase_name="cold", failed=()):
    answers = [
        answer(place, ttft=ttft, e2e=2 * ttft, error="cut" if place in failed else "", usage=Usage(1, 0, 2))
        for place, ttft in enumerate(ttfts)
    ]
    return phase(*answers, side={"A": SIDE, "B": OTHER}[name], turn=turn, name=phase_name)


def test_a_side_that_is_twice_as_slow_says_two():
    values = [0.1 + 0.01 * place for place in range(20)]
    slow = [2 * value for value in values]
    (row,) = compared(
        [side("A", 0, values), side("B", 0, slow), side("B", 1, slow), side("A", 1, values)], Target(), seed=1
    )
    assert (row.group, row.rate, row.name, row.a.requests, row.b.requests) == ("unique", 2.0, "cold", 40, 40)
    for ratio in row.ratios:
        assert (ratio.value, ratio.low, ratio.high, ratio.pairs) == (pytest.approx(2), *[pytest.approx(2)] * 2, 40)


def test_a_pair_wants_both_and_few_pairs_have_no_interval():
    (row,) = compared([side("A", 0, [0.1] * 9, failed=(0,)), side("B", 0, [0.1] * 8, failed=(1,))], Target(), seed=1)
    ttft = row.ratios[0]
    assert (ttft.value, ttft.low, ttft.high, ttft.pairs) == (1.0, None, None, 6)


def test_what_one_side_has_not_is_not_compared():
    assert compared([side("A", 0, [0.1] * 9), side("B", 0, [0.1] * 9, phase_name="warm")], Target(), seed=1) == ()
    (row,) = compared([side("A", 0, [0.1] * 9), side("B", 1, [0.1] * 9)], Target(), seed=1)
    assert row.ratios[0].value is None


def test_the_interval_is_the_same_twice_and_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for trial in range(60):
        dice = np.random.default_rng(trial)
        a, b = dice.lognormal(0, 0.5, 60), 1.3 * dice.lognormal(0, 0.5, 60)
        low, high = ratio_interval(a, b, seed=7, resamples=400)
        assert (low, high) == ratio_interval(a, b, seed=7, resamples=400)
        covered += low <= 1.3 <= high
    assert covered >= 52


def test_many_pairs_are_drawn_in_parts():
    a = np.linspace(1, 2, 40_000)
    low, high = ratio_interval(a, 3 * a, seed=1, resamples=60)
    assert low == pytest.approx(3)
    assert high == pytest.approx(3)
