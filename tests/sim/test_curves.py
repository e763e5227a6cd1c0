"""Sweeps: knees, the replicas a policy needs, and the same numbers in one process and in several."""

import pytest

from policies.errors import UnknownPolicy
from sim.curves import Fleet, Limit, Need, compared, knee_of, swept
from sim.presets import PresetError
from sim.traffic import PresetTraffic

TRAFFIC = PresetTraffic("lesson", (("requests", 300),))
FLEET = Fleet(2, 2_000, "llama-3.1-8b-h100")
LIMIT = Limit("ttft", "p95", 0.25)


@pytest.mark.parametrize(
    ("latencies_s", "knee"),
    [
        ((0.1, 0.2, 0.4), 40),
        ((2.0, 3.0, 4.0), None),
        ((0.1, 10.0, 20.0), 15),
        ((0.1, 10.0, 0.2), 15),
        ((0.1, float("inf"), float("inf")), 10),
    ],
)
def test_the_knee_is_where_the_limit_is_first_met(latencies_s, knee):
    assert knee_of((10, 20, 40), latencies_s, 1.0) == (None if knee is None else pytest.approx(knee))


def need(policy: str, replicas: int | None) -> Need:
    return Need(policy, 40.0, 5_000, replicas)


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        ({"round-robin": 12, "prefix-aware": 7}, "12 replicas with round-robin = 7 with prefix-aware at 40 requests/s"),
        ({"a": 12, "b": 7, "c": 12, "d": 7}, "12 replicas with a or c = 7 with b or d at 40 requests/s, TTFT p95 1 s"),
        ({"a": 3, "b": 3}, "every policy needs 3 replicas at 40 requests/s"),
        ({"a": None, "b": 7}, "128 replicas with a are too few where 7 with b are enough at"),
        ({"a": None, "b": None}, "128 replicas are too few for every policy at"),
        ({"a": 3}, ""),
    ],
)
def test_the_sentence(needs, told):
    sentence = compared([need(policy, replicas) for policy, replicas in needs.items()], Limit())
    assert sentence.startswith(told)
    assert bool(sentence) == bool(told)


def test_a_sweep_in_one_process_and_in_two_is_the_same():
    progress: list[tuple[int, int]] = []
    asked = (TRAFFIC, [FLEET], [60.0, 20.0], ["round-robin", "prefix-aware"])
    one = swept(*asked, limit=LIMIT, workers=1, progress=lambda done, of: progress.append((done, of)))
    two = swept(*asked, limit=LIMIT, workers=2)
    assert one == two
    assert progress == [(done, 6) for done in range(7)]
    assert [(curve.policy, curve.rates) for curve in one.curves] == [
        ("round-robin", (20.0, 60.0)),
        ("prefix-aware", (20.0, 60.0)),
    ]
    assert [found.replicas for found in one.needs] == sorted((found.replicas for found in one.needs), reverse=True)
    assert one.sentences


def test_the_replicas_needed_keep_the_limit_and_one_less_does_not():
    found = swept(TRAFFIC, [FLEET], [60.0], ["round-robin"], limit=LIMIT, workers=1)
    replicas = found.needs[0].replicas
    assert replicas is not None
    assert replicas > 1
    fleets = [Fleet(count, FLEET.blocks, FLEET.profile) for count in (replicas - 1, replicas)]
    below, enough = swept(TRAFFIC, fleets, [60.0], ["round-robin"], limit=LIMIT, workers=1, search=False).curves
    assert not below.beyond
    assert enough.beyond


def test_what_can_not_be_is_told_before_anything_runs():
    with pytest.raises(UnknownPolicy):
        swept(TRAFFIC, [FLEET], [20.0], ["prefix"], workers=1)
    with pytest.raises(PresetError):
        swept(PresetTraffic("lessons"), [FLEET], [20.0], ["round-robin"], workers=1)
