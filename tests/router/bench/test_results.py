"""Figures by hand: what is counted, of what a share is, and what stays unknown."""

import pytest

from router.bench.about import Counted
from router.bench.results import Spread, Target, figures, spread
from router.usage import Usage
from tests.answers import answer, phase


def test_latencies_are_of_good_answers_and_shares_of_all():
    one = figures(
        [
            phase(
                answer(0, ttft=0.1, e2e=0.5, usage=Usage(10, 0, 5)),
                answer(1, ttft=0.3, e2e=0.7, usage=Usage(10, 8, 5)),
                answer(2, ttft=9.0, e2e=9.0, error="http 500"),
                answer(3, ttft=None, e2e=1.0, error="timeout", late=0.2),
            )
        ],
        Target(ttft_s=0.2),
    )
    assert (one.requests, one.good, one.late, one.told) == (4, 2, 1, 2)
    assert one.errors == (("http 500", 1), ("timeout", 1))
    assert one.most_late_s == pytest.approx(0.2)
    assert one.ttft_s == Spread(pytest.approx(0.2), pytest.approx(0.29))
    assert one.tpot_s.p50 == pytest.approx(0.1)
    assert one.in_time_fraction == 1 / 4
    assert one.good_per_s == pytest.approx(2 / 11)  # from 0 to the end of the one that failed last
    assert (one.prompt_tokens, one.output_tokens) == (20, 10)
    assert (one.cached_tokens, one.cached_fraction, one.cached_source) == (8, 0.4, "usage")


def test_what_nobody_told_is_unknown_and_never_0():
    one = figures([phase(answer(0, ttft=None))], Target())
    assert one.ttft_s == one.tpot_s == Spread(None, None)
    assert one.e2e_s.p50 == 0.5
    assert (one.cached_tokens, one.cached_fraction, one.cached_source, one.prompt_tokens) == (None,) * 4
    assert (one.in_time_fraction, one.output_tokens_per_s) == (None, None)


def test_counters_speak_where_an_answer_is_silent():
    told, silent = answer(0, usage=Usage(10, 8, 1)), answer(1, usage=Usage(10, None, 1))
    one = figures([phase(told, silent, counted=Counted(40, 10))], Target())
    assert (one.cached_tokens, one.cached_fraction, one.cached_source, one.told) == (10, 0.25, "metrics", 1)
    assert figures([phase(told, silent)], Target()).cached_tokens is None
    assert figures([phase(told, silent, counted=Counted(0, 0))], Target()).cached_tokens is None
    both = figures([phase(silent, counted=Counted(40, 10)), phase(silent)], Target())
    assert both.cached_tokens is None


def test_turns_are_put_together():
    one = figures([phase(answer(0, e2e=1.0)), phase(answer(0, e2e=3.0))], Target())
    assert (one.requests, one.e2e_s.p50) == (2, 2.0)
    assert one.good_per_s == pytest.approx(2 / 4)


def test_a_target_may_be_of_the_whole_answer_and_wants_what_it_asks_to_be_known():
    both = Target(ttft_s=0.2, e2e_s=1.0)
    assert both.met(answer(0))
    assert not both.met(answer(0, e2e=1.1))
    assert not both.met(answer(0, ttft=None))
    assert Target(e2e_s=1.0).met(answer(0, ttft=None))
    assert not Target().met(answer(0, error="cut"))


def test_nothing_has_no_spread():
    assert spread([None, None]) == Spread(None, None)
    assert figures([], Target(1.0)).in_time_fraction is None
