"""Who stands aside, and that it ends."""

from hypothesis import given
from hypothesis import strategies as st

from router.aside import BUSY_S, FAILED_S, LONGEST_BUSY_S, Aside

LOADS = {"r1": 0, "r2": 0}


def aside(trials=(), loads=LOADS) -> Aside:
    return Aside(trials, loads.__getitem__)


def test_nobody_stands_aside_at_first():
    assert aside().names(0.0) == frozenset()


def test_a_replica_that_failed_stands_aside_for_a_moment():
    found = aside()
    found.failed("r1", 10.0)
    assert found.names(10.0) == {"r1"}
    assert found.names(10.0 + FAILED_S) == set()


def test_a_busy_replica_stands_aside_as_long_as_it_says_but_not_for_ever():
    found = aside()
    found.busy("r1", 0.0)
    found.busy("r2", 0.0, 2.0)
    assert found.names(BUSY_S) == {"r2"}
    assert found.names(2.0) == set()
    found.busy("r2", 0.0, 3600.0)
    assert found.names(LONGEST_BUSY_S - 0.1) == {"r2"}
    assert found.names(LONGEST_BUSY_S) == set()


@given(st.lists(st.tuples(st.sampled_from(["failed", "busy"]), st.floats(0, 20)), min_size=1, max_size=20))
def test_a_later_fact_never_shortens_the_time(facts):
    found, latest_s = aside(), 0.0
    for kind, seconds in facts:
        if kind == "failed":
            found.failed("r1", 0.0)
            latest_s = max(latest_s, FAILED_S)
        else:
            found.busy("r1", 0.0, seconds)
            latest_s = max(latest_s, min(seconds, LONGEST_BUSY_S))
    assert found.names(latest_s) == set()
    assert latest_s == 0.0 or aside_until(facts) == latest_s


def aside_until(facts) -> float:
    found = aside()
    for kind, seconds in facts:
        found.failed("r1", 0.0) if kind == "failed" else found.busy("r1", 0.0, seconds)
    return found._until_s["r1"]


def test_a_silent_replica_stands_aside_until_it_is_heard():
    found = aside()
    found.silent("r1")
    assert found.names(1e9) == {"r1"}
    found.heard("r1")
    assert found.names(1e9) == set()


def test_a_replica_on_trial_has_one_request_at_a_time():
    trials, loads = set(), {"r1": 3, "r2": 0}
    found = aside(trials, loads)
    trials.add("r1")
    assert found.names(0.0) == set()  # the three of before are no trial
    loads["r1"] = 4
    assert found.names(0.0) == {"r1"}
    loads["r1"] = 3
    assert found.names(0.0) == set()
    loads["r1"] = 4
    trials.clear()
    assert found.names(0.0) == set()


def test_repr():
    found = aside()
    assert repr(found) == "<Aside nobody>"
    found.silent("r2")
    assert repr(found) == "<Aside r2>"
