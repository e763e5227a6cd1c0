"""Numbers of a run, worked out by hand on a few requests and checked against plain sums on many."""

import numpy as np
import pytest

from policies.plugins import load
from sim.results import Limits, Spread, averaged, result
from sim.rows import Rows
from sim.run import Setup, simulate
from tests.sim.loads import chats


def outcome(*rows, replicas=2, **more):
    """Rows of (replica, tenant, prompt, output, cached, predicted, available, sent, first, end)."""
    columns = Rows()
    for number, (replica, tenant, prompt, output, cached, predicted, available, *times) in enumerate(rows):
        columns.number.append(number)
        columns.replica.append(replica)
        columns.place_of(tenant, "/v1/completions")
        columns.prompt.append(prompt)
        columns.output.append(output)
        columns.cached.append(cached)
        columns.predicted.append(predicted)
        columns.available.append(available)
        columns.queue.append(number)
        for column, value in zip((columns.sent_s, columns.first_s, columns.end_s), times, strict=True):
            column.append(value)
    told = {"preemptions": 3, "duplicated_fraction": 0.25, "refused": 1, "reasons": {"tie": 2}}
    return columns.outcome(replicas=replicas, **(told | more))


TWO = outcome(
    (0, "a", 100, 11, 0, 0, 32, 1.0, 1.5, 2.5),
    (1, "b", 300, 1, 96, 128, 160, 2.0, 4.0, 4.0),
)


def test_hit_rates_are_over_tokens():
    told = result("p", TWO, limits=Limits())
    assert told.prompt_tokens == 400
    assert told.computed_tokens == 304
    assert told.hit_rate == pytest.approx(96 / 400)
    assert told.predicted_hit_rate == pytest.approx(128 / 400)
    assert told.available_hit_rate == pytest.approx(192 / 400)


def test_latencies():
    told = result("p", TWO, limits=Limits())
    assert told.ttft_s.mean == pytest.approx(1.25)
    assert told.ttft_s.p50 == pytest.approx(1.25)
    assert told.e2e_s.mean == pytest.approx(1.75)
    assert told.tpot_s.mean == pytest.approx(0.1), "only the answer of eleven tokens has one"
    assert told.ttft_curve_s[0] == pytest.approx(0.5)
    assert told.ttft_curve_s[-1] == pytest.approx(2.0)


def test_throughput_is_over_the_time_from_first_sent_to_last_end():
    told = result("p", TWO, limits=Limits())
    assert told.duration_s == pytest.approx(3.0)
    assert told.requests_per_s == pytest.approx(2 / 3)
    assert told.output_tokens_per_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("limits", "good"),
    [(Limits(1.0, 0.11), 1), (Limits(3.0, 0.11), 2), (Limits(3.0, 0.09), 1), (Limits(0.1, 0.1), 0)],
)
def test_good_requests_keep_both_limits(limits, good):
    told = result("p", TWO, limits=limits)
    assert told.goodput_fraction == pytest.approx(good / 2)
    assert told.goodput == pytest.approx(good / 3)


def test_load_of_replicas():
    told = result("p", TWO, limits=Limits())
    assert told.computed_by_replica == (100, 204)
    assert told.requests_by_replica == (1, 1)
    assert told.imbalance == pytest.approx(204 / 152)
    assert told.queue_mean == pytest.approx(0.5)
    assert told.queue_max == 1
    assert told.preemptions == 3
    assert told.duplicated_fraction == 0.25


def test_parts_are_told_where_there_are_several():
    told = result("p", TWO, limits=Limits())
    assert [part.name for part in told.tenants] == ["a", "b"]
    assert [part.hit_rate for part in told.tenants] == [0.0, pytest.approx(96 / 300)]
    assert told.routes == ()


def test_lengths_only_say_nothing_of_hits():
    told = result("p", TWO, limits=Limits(), has_prefixes=False)
    rates = (told.hit_rate, told.predicted_hit_rate, told.available_hit_rate, told.computed_tokens)
    assert rates == (None, None, None, None)
    assert told.duplicated_fraction is None
    assert told.ttft_s.mean is not None


def test_nothing_sent_is_nothing_known():
    told = result("p", outcome(), limits=Limits())
    assert told.requests == told.prompt_tokens == 0
    assert (told.hit_rate, told.ttft_s, told.goodput, told.imbalance) == (None, Spread(), None, None)


def test_parts_add_up_to_the_whole():
    told = result("p", simulate(chats(), load("prefix-aware"), Setup(replicas=3, blocks=400)), limits=Limits())
    for parts in (told.tenants, told.routes):
        assert sum(part.requests for part in parts) == told.requests == 60
        assert sum(part.prompt_tokens for part in parts) == told.prompt_tokens
        assert sum(part.computed_tokens for part in parts) == told.computed_tokens
    assert sum(told.computed_by_replica) == told.computed_tokens


def test_the_mean_of_seeds_is_number_by_number():
    first = result("p", TWO, limits=Limits())
    second = result("p", outcome((0, "a", 200, 11, 100, 0, 0, 1.0, 1.1, 2.1)), limits=Limits())
    mean = averaged([first, second])
    assert mean.policy == "p"
    assert mean.requests == round(1.5)
    assert mean.hit_rate == pytest.approx((96 / 400 + 0.5) / 2)
    assert mean.ttft_s.mean == pytest.approx((1.25 + 0.1) / 2)
    assert len(mean.ttft_curve_s) == len(first.ttft_curve_s)
    assert mean.reasons == {"tie": 2}


def test_the_mean_of_one_is_itself():
    only = result("p", TWO, limits=Limits())
    assert averaged([only]) is only


def test_tenants_of_several_seeds_are_matched_by_name():
    first = result("p", TWO, limits=Limits())
    mean = averaged([first, first])
    assert mean.tenants == first.tenants


def test_percentiles_pass_over_what_is_not_known():
    assert Spread.of(np.array([np.nan, 1.0, 3.0])).mean == pytest.approx(2.0)
    assert Spread.of(np.array([np.nan])) == Spread()
