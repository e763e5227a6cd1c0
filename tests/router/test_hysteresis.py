"""Facts about replicas in, states out."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.hysteresis import CLOSED, LONGEST_COOLDOWN_S, LONGEST_SILENCE_S, NEUTRAL, OPEN, TRIAL, Health

REFUSED = "refused the connection"


def opened(*names: str, **settings: object) -> Health:
    health = Health(**settings)
    for name in names:
        health.joined(name, 0.0)
        health.serves(name, ["m"])
        for _ in range(settings.get("rise", 1)):
            health.probed(name, 0.0)
    return health


def states(health: Health, *names: str) -> list[str]:
    return [health[name].state for name in names]


def test_a_replica_is_not_used_before_it_answers():
    health = Health()
    health.joined("r1", 0.0)
    assert not health["r1"].usable
    assert health.probed("r1", 1.0, REFUSED) is None
    assert health.probed("r1", 2.0) == OPEN


def test_bad_probes_in_a_row_close_and_one_good_one_in_between_starts_over():
    health = opened("r1", "r2", fall=2)
    assert health.probed("r1", 1.0, REFUSED) is None
    assert health.probed("r1", 2.0) is None
    assert health.probed("r1", 3.0, REFUSED) is None
    assert health.probed("r1", 4.0, REFUSED) == CLOSED
    assert health["r1"].reason == "refused the connection 2 times"


def test_rise_asks_for_several_good_probes():
    health = opened("r1", "r2", rise=3)
    health.probed("r1", 1.0, REFUSED)
    health.probed("r1", 2.0, REFUSED)
    assert [health.probed("r1", now) for now in (4.0, 5.0, 6.0)] == [None, None, TRIAL]


@pytest.mark.parametrize("kind", sorted(NEUTRAL))
def test_busy_replicas_and_wrong_clients_are_neutral(kind):
    health = opened("r1", "r2")
    for _ in range(20):
        assert health.failed("r1", kind, 1.0) is None
    assert states(health, "r1") == [OPEN]


@pytest.mark.parametrize("kind", ["unreachable", "lost", "timed_out", "cut", "status_5xx"])
def test_failed_requests_in_a_row_close(kind):
    health = opened("r1", "r2")
    assert health.failed("r1", kind, 1.0) is None
    assert health.failed("r1", kind, 1.1) == CLOSED
    assert health["r1"].failures == {kind: 2}
    assert "2 times" in health["r1"].reason


def test_a_success_between_failures_starts_over():
    health = opened("r1", "r2")
    for now in range(10):
        assert health.failed("r1", "lost", float(now)) is None
        health.succeeded("r1", float(now))


def test_passive_counting_can_be_switched_off():
    health = opened("r1", "r2", passive=False)
    for _ in range(20):
        health.failed("r1", "lost", 1.0)
    assert states(health, "r1") == [OPEN]
    assert health["r1"].failures == {"lost": 20}


def test_failed_requests_never_close_the_last_open_replica_but_probes_do():
    health = opened("r1")
    for _ in range(20):
        assert health.failed("r1", "unreachable", 1.0) is None
    assert health.due_s("r1", 1.0, 2.0) == 0.5
    assert health.probed("r1", 1.5, REFUSED) is None
    assert health.probed("r1", 2.0, REFUSED) == CLOSED


def test_the_last_replica_of_one_model_stays_though_others_are_open():
    health = opened("r1", "r2")
    health.serves("r2", ["another"])
    for _ in range(5):
        health.failed("r1", "lost", 1.0)
    assert states(health, "r1", "r2") == [OPEN, OPEN]


def test_a_closed_replica_is_tried_again_after_a_cool_down_that_doubles_with_each_failed_trial():
    health = opened("r1", "r2")
    health.failed("r1", "status_5xx", 0.0)
    health.failed("r1", "status_5xx", 0.0)
    now, waits = 0.0, []
    for _ in range(8):
        assert health.probed("r1", now + health.due_s("r1", now, 2.0) - 0.01) is None
        waits.append(health.due_s("r1", now, 2.0))
        now += waits[-1]
        assert health.probed("r1", now) == TRIAL
        assert health.failed("r1", "status_5xx", now) == CLOSED
    assert waits[:5] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_COOLDOWN_S


def test_a_request_that_succeeds_ends_the_trial_and_the_long_cool_downs():
    health = opened("r1", "r2")
    for now in (0.0, 0.1):
        health.failed("r1", "cut", now)
    health.probed("r1", 1.0)
    health.failed("r1", "cut", 1.0)
    health.probed("r1", 3.0)
    health.succeeded("r1", 3.1)
    assert states(health, "r1") == [OPEN]
    assert health["r1"].cooldown_s == 0.5


def test_a_later_failure_never_shortens_the_cool_down():
    health = opened("r1", "r2")
    health["r1"].closed_until_s = 50.0
    health.failed("r1", "lost", 1.0)
    health.failed("r1", "lost", 1.0)
    assert health["r1"].closed_until_s == 50.0


def test_a_replica_that_does_not_answer_is_asked_every_second():
    health = Health()
    health.joined("r1", 0.0)
    waits = []
    for _ in range(8):
        health.probed("r1", 0.0, REFUSED)
        waits.append(health.due_s("r1", 0.0, 2.0))
    assert waits == [LONGEST_SILENCE_S] * 8


def test_a_replica_that_gives_requests_up_is_out_at_once_but_never_the_last():
    health = opened("r1", "r2")
    assert health.failed("r1", "aborted", 1.0) == CLOSED
    assert health.failed("r2", "aborted", 1.0) is None


def test_a_replica_that_answers_nobody_is_out_at_once_but_never_the_last():
    health = opened("r1", "r2")
    assert health.silenced("r1", "hangs", 1.0) == CLOSED
    assert (health["r1"].reason, health["r1"].failures) == ("hangs", {"silent": 1})
    assert health.silenced("r1", "hangs", 1.1) is None
    assert health.silenced("r2", "hangs", 1.2) is None
    assert states(health, "r1", "r2") == [CLOSED, OPEN]
    health.left("r1")
    assert health.silenced("r1", "hangs", 1.3) is None


def test_trials_are_known_while_they_last():
    health = opened("r1", "r2", "r3")
    for name in ("r1", "r2"):
        health.silenced(name, "hangs", 0.0)
        health.probed(name, 1.0)
    assert health.trials == {"r1", "r2"}
    health.succeeded("r1", 1.0)
    assert health.trials == {"r2"}
    health.failed("r2", "lost", 1.0)
    assert health.trials == set()
    health.probed("r2", 5.0)
    assert health.trials == {"r2"}
    health.left("r2")
    assert health.trials == set()


def test_five_percent_of_refused_connections_keep_nobody_out_for_a_second():
    health, dice = opened("r1", "r2", "r3"), random.Random(1)
    out_since: dict[str, float] = {}
    longest_s = 0.0
    for step in range(5000):
        now = step * 0.02
        name = dice.choice([n for n in ("r1", "r2", "r3") if health[n].usable])
        if dice.random() < 0.05:
            if health.failed(name, "unreachable", now) == CLOSED:
                out_since[name] = now
        else:
            health.succeeded(name, now)
        for closed, since in list(out_since.items()):
            if health.due_s(closed, since, 2.0) <= now - since and health.probed(closed, now):
                longest_s = max(longest_s, now - out_since.pop(closed))
    assert 0 < longest_s <= 1.01


def test_facts_about_a_replica_that_left_are_ignored():
    health = opened("r1")
    health.left("r1")
    assert health.failed("r1", "lost", 1.0) is None
    health.succeeded("r1", 1.0)
    assert "r1" not in health


FACTS = st.lists(
    st.tuples(st.sampled_from(["r1", "r2", "r3"]), st.sampled_from(["lost", "busy", "success"]), st.floats(0, 1)),
    max_size=60,
)


@given(FACTS)
def test_without_bad_probes_somebody_is_always_open(facts):
    health, now = opened("r1", "r2", "r3"), 0.0
    for name, fact, pause_s in facts:
        now += pause_s
        if fact == "success":
            health.succeeded(name, now)
        else:
            health.failed(name, fact, now)
        assert any(health[other].usable for other in ("r1", "r2", "r3"))


def test_repr_is_one_line():
    assert repr(opened("r1", "r2")) == "<Health r1=open r2=open>"
