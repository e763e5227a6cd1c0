"""What the page shows: numbers of the families, decisions with why, and nothing about persons."""

import json

import pytest
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.types import Choice, Replica
from router.engine_metrics import EngineMetrics
from router.families import counter, gauge
from router.health import ReplicaState
from router.kv_events import KvState
from router.kv_standing import EXACT, Standing
from router.placing import Placed
from router.prompts import Prompt
from router.watch import MOST_DECISIONS, MOST_SHOWN, Decisions, History, Samples, largest, snapshot, why
from tests.router.outcomes import CHAT, altered, outcome

REQUEST = replace(sample_request(1, blocks=10), id="7", route=CHAT, model="m", tenant="acme", user="ann", session="s-1")
DONE = outcome(165, available=160, predicted=64, replica="r2", reason="load")


def replica(name: str, matched: int = 0, in_flight: int = 0, pending: int = 0) -> Replica:
    return Replica(name, in_flight, pending, matched, 0, 0, None, 1.0)


def placed(chosen: str, *view: Replica) -> Placed:
    row = next(one for one in view if one.name == chosen)
    return Placed(REQUEST, Prompt(165, REQUEST.blocks, "exact"), view, Choice(chosen, "load"), row)


def test_only_the_largest_are_shown():
    sums = {"route": {}, "tenant": {f"t{number}": [number, 0, 0, 0, 0] for number in range(1000)}}
    assert list(largest(sums)["tenant"]) == [f"t{number}" for number in range(999, 999 - MOST_SHOWN, -1)]


def test_history_forgets_the_oldest():
    history = History(most=3)
    for second in range(5):
        history.took(float(second), {"route": {}, "tenant": {}})
    assert [point["time_s"] for point in history.points()] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("chosen", "view", "words"),
    [
        ("r1", [replica("r1")], "the only replica"),
        ("r1", [replica("r1", 0, 2, 30), replica("r2")], "no replica is known to have any"),
        ("r1", [replica("r1", 4), replica("r2", 3)], "64 tokens are probably cached here, more than elsewhere"),
        ("r1", [replica("r1", 4), replica("r2", 4), replica("r3")], "as on 1 more"),
        (
            "r2",
            [replica("r1", 9, 5, 7000), replica("r2", 4, 1, 20)],
            "80 more tokens are cached on r1, but 5 in flight and 7,000 tokens waiting there; 1 in flight",
        ),
    ],
)
def test_why(chosen, view, words):
    assert words in why(placed(chosen, *view))


def test_a_decision_names_no_person_and_no_text():
    decisions = Decisions(lambda: 5.0, lambda _: {"r1": 12.5})
    decisions.ended(placed("r2", replica("r1", 10, 3, 900), replica("r2", 4)), DONE)
    (row,) = decisions.rows()
    assert (row["replica"], row["reason"], row["tenant"], row["time_s"]) == ("r2", "load", "acme", 5.0)
    assert row["delivered_tokens"] is None
    assert [one["name"] for one in row["candidates"]] == ["r2", "r1"]
    assert [one["cost_tokens"] for one in row["candidates"]] == [None, 12.5]
    assert "ann" not in json.dumps(row)
    assert "s-1" not in json.dumps(row)


def test_decisions_are_bounded_newest_first_and_put_into_words_once():
    asked = []
    decisions = Decisions(lambda: 0.0, lambda one: asked.append(one) or {})
    for number in range(MOST_DECISIONS + 10):
        one = placed("r1", *(replica(f"r{name}") for name in range(1, 21)))
        decisions.ended(altered(one, request=replace(REQUEST, id=str(number))), DONE)
    rows = decisions.rows()
    assert [row["id"] for row in rows] == [str(number) for number in range(MOST_DECISIONS + 9, 9, -1)]
    assert (len(rows[0]["candidates"]), rows[0]["more_candidates"]) == (8, 12)
    assert decisions.rows() == rows
    assert len(asked) == MOST_DECISIONS
    decisions.forget()
    assert decisions.rows() == []


def test_a_replica_that_says_nothing_is_unknown_and_not_zero():
    states = [
        ReplicaState("r1", "http://a", "open", "", 1.0, ("m",), {}, 0, EngineMetrics(capacity_blocks=101, engines=1)),
        ReplicaState("r2", "http://b", "closed", "refused the connection", 1.0, None, {"unreachable": 3}, 1, None),
    ]
    events = [KvState("r1", Standing(EXACT, "hashes are sha256", "a gap"), True, None, 0, None, {}, {})]
    families = [
        gauge("router_in_flight", [(("r1",), 2), (("r2",), 0)]),
        gauge("router_held_blocks", [(("r1",), 40), (("r2",), 0)]),
        gauge("router_replica_kv_used_fraction", [(("r1",), 0.25)]),
        counter("router_replica_failures_total", [(("r2", "unreachable"), 3)]),
        counter("router_choices_total", [(("r1", "prefix"), 5), (("r1", "load"), 2)]),
    ]
    samples = Samples(families)
    seen = snapshot(time_s=1.0, samples=samples, sums={}, states=states, events=events, decisions=[], block_tokens=16)
    first, second = seen["replicas"]
    assert (first["in_flight"], first["chosen"], first["kv_used_fraction"]) == (2, 7, 0.25)
    assert (first["held_blocks"], first["capacity_blocks"]) == (40, 100)
    assert (first["standing"], first["standing_reason"], first["degraded"]) == ("EXACT", "a gap", True)
    assert (second["kv_used_fraction"], second["capacity_blocks"], second["standing"]) == (None, None, None)
    assert (second["failures"], second["reason"], second["usable"]) == (3, "refused the connection", False)
    assert seen["shadow"] is None


def test_losses_and_shadow_are_shown_where_they_are_counted():
    families = [
        counter("router_shadow_choices_total", [((CHAT, "yes"), 8), ((CHAT, "no"), 2)]),
        counter("router_shadow_tokens_total", [((CHAT, "live"), 500), ((CHAT, "shadow"), 400)]),
        counter("router_shadow_failures_total", [((), 1)]),
    ]
    seen = snapshot(time_s=1.0, samples=Samples(families), sums={}, states=[], events=[], decisions=[], block_tokens=16)
    assert seen["shadow"] == {"agreed": 8, "differed": 2, "failed": 1, "tokens": {"live": 500, "shadow": 400}}
    assert seen["losses"] == {}
