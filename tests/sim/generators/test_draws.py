"""Draws keep their bounds and their streams."""

import itertools
import statistics

import pytest

from sim.generators.draws import Gaps, Lengths, Zipf, poisson, stream


def test_a_stream_is_its_seed_and_its_purpose():
    assert stream(1, "a").random() == stream(1, "a").random()
    assert len({stream(1, "a").random(), stream(2, "a").random(), stream(1, "b").random()}) == 3


def test_lengths_have_their_median_and_bounds():
    draw = stream(1, "lengths")
    drawn = [Lengths(100, 1.0, 20, 700).of(draw) for _ in range(5_000)]
    assert statistics.median(drawn) == pytest.approx(100, rel=0.05)
    assert (min(drawn), max(drawn)) == (20, 700)


def test_gaps_have_an_end():
    draw = stream(1, "gaps")
    assert max(Gaps(10, 2.0, 60).of(draw) for _ in range(1_000)) == 60


def test_poisson_keeps_its_rate():
    times = list(itertools.islice(poisson(stream(1, "times"), 20), 5_000))
    assert 5_000 / times[-1] == pytest.approx(20, rel=0.05)


def test_the_first_place_is_the_hottest():
    draw, zipf = stream(1, "places"), Zipf(10, 1.0)
    drawn = [zipf.of(draw) for _ in range(5_000)]
    assert set(drawn) == set(range(10))
    assert drawn.count(0) / drawn.count(1) == pytest.approx(2, rel=0.15)
