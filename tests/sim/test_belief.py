"""What the router knows, and how late: events with lag and loss, capacity, speculative entries, stale reports."""

from dataclasses import replace

import pytest

from policies.types import Choice
from sim.arrivals import Arrival, Workload
from sim.run import Setup, simulate
from sim.setup import Belief

BLOCK = 16


def keys(name, blocks):
    return tuple(f"{name:>12}".encode() + place.to_bytes(4, "little") for place in range(blocks))


def arrival(number, time_s, name="a", *, blocks=10, output=1):
    tokens = blocks * BLOCK
    return Arrival(number, time_s, tokens + 1, output, keys(name, blocks + output // BLOCK))


class Watching:
    """The first replica, always; remembers every view."""

    def __init__(self):
        self.views = []

    def choose(self, request, replicas):
        self.views.append(replicas)
        return Choice(replicas[0].name, "first")


def seen(belief, *arrivals, replicas=2, blocks=1000):
    policy = Watching()
    simulate(Workload("test", BLOCK, arrivals), policy, Setup(replicas=replicas, blocks=blocks, belief=belief))
    return policy.views


def matched(belief, *arrivals, **more):
    """Blocks of every request that the first replica was believed to hold."""
    return [view[0].matched_blocks for view in seen(belief, *arrivals, **more)]


def test_what_was_sent_counts_as_held_at_once():
    assert matched(Belief(), arrival(0, 0.0), arrival(1, 0.0001)) == [0, 10]


def test_without_speculative_entries_blocks_count_once_the_answer_has_ended():
    belief = Belief(speculative=False)
    assert matched(belief, arrival(0, 0.0), arrival(1, 0.0001), arrival(2, 5.0)) == [0, 0, 10]


def test_events_tell_after_their_lag():
    belief = Belief("events", lag_s=1.0, speculative=False)
    assert matched(belief, arrival(0, 0.0, output=400), arrival(1, 0.5), arrival(2, 1.5)) == [0, 0, 10]


def test_each_replica_has_its_own_lag():
    belief = Belief("events", lag_s=(0.25, 4.0))
    assert [belief.lag_of(place) for place in range(3)] == [0.25, 4.0, 0.25]


def test_lost_events_never_tell():
    belief = Belief("events", lost_fraction=1.0, speculative=False)
    lost = matched(belief, arrival(0, 0.0, output=400), arrival(1, 1.0))
    kept = matched(Belief("events", speculative=False), arrival(0, 0.0, output=400), arrival(1, 1.0))
    assert (lost, kept) == ([0, 0], [0, 10])


def test_events_take_evicted_blocks_out_of_the_index_and_dispatches_alone_do_not():
    """The index is larger than the cache: only an event can tell that the first prompt is gone."""
    others = [arrival(number, float(number), f"other {number}", blocks=20) for number in range(1, 5)]
    again = arrival(5, 9.0)
    arrivals = (arrival(0, 0.0), *others, again)
    assert matched(Belief(capacity_factor=100), *arrivals, blocks=60)[-1] == 10
    assert matched(Belief("events", capacity_factor=100), *arrivals, blocks=60)[-1] == 0


def test_the_truth_is_what_the_cache_holds():
    others = [arrival(number, float(number), f"other {number}", blocks=20) for number in range(1, 5)]
    arrivals = (arrival(0, 0.0), arrival(1, 1.0), *others[1:], arrival(5, 9.0))
    assert matched(Belief("truth", capacity_factor=100), *arrivals, blocks=60) == [0, 10, 0, 0, 0, 0]


def test_the_index_has_a_capacity_of_its_own():
    capacities = [
        seen(Belief(capacity_factor=factor), arrival(0, 0.0))[0][0].capacity_blocks for factor in (1, 0.5, None)
    ]
    assert capacities == [999, 500, None]


def test_an_index_that_is_too_small_forgets_what_the_cache_still_has():
    arrivals = (arrival(0, 0.0), arrival(1, 1.0, "b"), arrival(2, 2.0))
    assert matched(Belief(capacity_factor=0.01), *arrivals)[-1] < matched(Belief(), *arrivals)[-1]


def test_answers_are_in_the_index_only_if_the_router_knows_their_tokens():
    first = arrival(0, 0.0, output=64)
    second = Arrival(1, 5.0, 14 * BLOCK + 1, 1, keys("a", 14))
    assert matched(Belief(), first, second) == [0, 10]
    assert matched(Belief(knows_answers=True), first, second) == [0, 14]


def test_a_replica_that_delivers_less_corrects_the_index():
    """The index is larger than the cache. The head of two prompts was lost, so what continued it is too."""
    head, whole = 20, 40
    other = Arrival(1, 0.5, whole * BLOCK + 1, 1, (*keys("a", head), *keys("b", head)))
    strangers = [arrival(number, float(number), f"other {number}", blocks=20) for number in range(2, 6)]
    again = (arrival(6, 9.0, blocks=head), arrival(7, 10.0, blocks=whole))
    arrivals = (arrival(0, 0.0, blocks=whole), other, *strangers, *again)
    belief, fleet = Belief(capacity_factor=100), {"replicas": 1, "blocks": 62}
    assert matched(belief, *arrivals, **fleet)[-2:] == [head, head]
    assert matched(replace(belief, corrected=False), *arrivals, **fleet)[-2:] == [head, whole]


def test_where_events_tell_there_is_nothing_to_correct():
    others = [arrival(number, float(number), f"other {number}", blocks=20) for number in range(1, 3)]
    arrivals = (arrival(0, 0.0, blocks=40), *others, arrival(3, 9.0, blocks=20), arrival(4, 10.0, blocks=40))
    told = [
        matched(Belief("events", corrected=corrected, capacity_factor=100), *arrivals, replicas=1, blocks=62)
        for corrected in (True, False)
    ]
    assert told[0] == told[1]


def test_reports_are_as_old_as_their_interval():
    answers = [arrival(number, time_s, output=4000) for number, time_s in enumerate((0.0, 0.9, 1.1, 1.5))]
    ages = [view[0].report_age_s for view in seen(Belief(report_every_s=1.0), *answers)]
    running = [view[0].engine_running for view in seen(Belief(report_every_s=1.0), *answers)]
    assert ages[1:] == [pytest.approx(0.9), pytest.approx(0.1), pytest.approx(0.5)]
    assert running[1:] == [0, 2, 2]


def test_fresh_reports_are_fresh():
    answers = [arrival(number, time_s, output=4000) for number, time_s in enumerate((0.0, 0.9, 1.1, 1.5))]
    assert [view[0].engine_running for view in seen(Belief(report_every_s=0.0), *answers)][1:] == [1, 2, 3]


@pytest.mark.parametrize(
    "wrong", [{"lost_fraction": 1.5}, {"lag_s": -1.0}, {"report_every_s": -1.0}, {"lag_s": (0.0, -1.0)}]
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError):
        Belief(**wrong)
