"""Every prompt token is delivered or lost, and a lost one has one reason."""

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.fleet import Fleet
from policies.types import Choice
from router.losses import LOAD, ROUTING, STALE, UNREADABLE, WORKLOAD, Losses
from router.metrics import OTHER
from router.placing import Placed
from router.prompts import Prompt
from tests.fakes import fake_replica, ok, posted, router_over
from tests.router.outcomes import CHAT, altered, outcome

REQUEST = replace(sample_request(1, blocks=10), route=CHAT, model="m", tenant="acme", prompt_tokens=165)
PROMPT = Prompt(165, REQUEST.blocks, "exact")
DONE = outcome(165, available=160, predicted=160, delivered=160)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


KNOWN = {"acme", *(f"t{number}" for number in range(500))}


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.joined(name)
    return fleet


def placed(fleet: Fleet, chosen: str, without: tuple[str, ...] = ()) -> Placed:
    view = fleet.view(REQUEST, 0.0, without)
    return Placed(REQUEST, PROMPT, view, Choice(chosen, "prefix"), next(row for row in view if row.name == chosen))


def losses_of(fleet: Fleet, *, blind: bool = False, clock: Clock | None = None) -> Losses:
    return Losses(fleet, clock or Clock(), [CHAT], blind=blind, label=lambda name: name if name in KNOWN else OTHER)


def counted(losses: Losses, name: str) -> dict[tuple[str, ...], float]:
    family = next(family for family in losses.collect() if family.name == name)
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def lost(losses: Losses) -> dict[str, float]:
    """By reason, of the one route, tenant and replica."""
    found = counted(losses, "router_lost_tokens")
    assert {labels[1:] for labels in found} <= {(CHAT, "acme", "r1")}
    return {labels[0]: value for labels, value in found.items()}


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, {WORKLOAD: 5}),
        ({"available_tokens": 0, "predicted_tokens": 0, "delivered_tokens": 0}, {WORKLOAD: 165}),
        ({"predicted_tokens": 64, "delivered_tokens": 64}, {WORKLOAD: 5, LOAD: 96}),
        ({"delivered_tokens": 32}, {WORKLOAD: 5, STALE: 128}),
        ({"predicted_tokens": 64, "delivered_tokens": 32}, {WORKLOAD: 5, LOAD: 96, STALE: 32}),
        ({"delivered_tokens": None}, {WORKLOAD: 5}),
        ({"reason": "policy-failed", "predicted_tokens": 0, "delivered_tokens": 0}, {WORKLOAD: 5, ROUTING: 160}),
        ({"basis": "none", "available_tokens": 0}, {UNREADABLE: 165}),
        ({"status": 400}, {}),
        ({"outcome": "error-event"}, {}),
    ],
)
def test_what_was_lost_has_a_reason(changes: dict[str, object], reasons: dict[str, int]) -> None:
    fleet = fleet_of("r1", "r2")
    losses = losses_of(fleet)
    losses.answered(placed(fleet, "r1"), altered(DONE, **changes))
    assert lost(losses) == reasons


def test_a_policy_that_looks_at_no_prefix_leaves_warm_replicas_by_chance() -> None:
    fleet = fleet_of("r1", "r2")
    losses = losses_of(fleet, blind=True)
    losses.answered(placed(fleet, "r1"), altered(DONE, predicted_tokens=0, delivered_tokens=0))
    assert lost(losses) == {WORKLOAD: 5, ROUTING: 160}


def test_what_only_a_closed_or_failed_replica_held_is_lost_by_routing() -> None:
    fleet = fleet_of("r1", "r2", "r3")
    for name, blocks in (("r2", 6), ("r3", 8)):
        warm = replace(REQUEST, id=name, blocks=REQUEST.blocks[:blocks])
        fleet.sent(warm, name)
        fleet.done(warm)
    fleet.closed("r3")
    losses = losses_of(fleet)
    cold = altered(DONE, available_tokens=32, predicted_tokens=32, delivered_tokens=32)
    losses.answered(placed(fleet, "r1", without=("r2",)), cold)
    assert lost(losses) == {WORKLOAD: 165 - 128, ROUTING: 96}
    fleet.serves("r3", ["other"])
    losses = losses_of(fleet)
    losses.answered(placed(fleet, "r1", without=("r2",)), cold)
    assert lost(losses) == {WORKLOAD: 165 - 96, ROUTING: 64}


tokens = st.integers(0, 160)


@settings(deadline=None)
@given(tokens, tokens, tokens, st.booleans())
def test_prompt_tokens_are_delivered_or_lost(available: int, predicted: int, delivered: int, blind: bool) -> None:
    fleet = fleet_of("r1")
    losses = losses_of(fleet, blind=blind)
    available = max(available, predicted)
    figures = {"available_tokens": available, "predicted_tokens": predicted, "delivered_tokens": delivered}
    losses.answered(placed(fleet, "r1"), altered(DONE, **figures))
    unpredicted = sum(counted(losses, "router_unpredicted_tokens").values())
    assert delivered - unpredicted + sum(lost(losses).values()) == 165


def test_labels_come_from_closed_sets() -> None:
    fleet = fleet_of("r1")
    losses = losses_of(fleet)
    for number in range(600):
        asked = placed(fleet, "r1")
        asked = altered(asked, request=replace(asked.request, tenant=f"t{number}"))
        losses.answered(asked, altered(DONE, route=f"/v1/unknown/{number}"))
    found = counted(losses, "router_lost_tokens")
    assert {labels[1] for labels in found} == {OTHER}
    assert {labels[2] for labels in found} == KNOWN - {"acme"} | {OTHER}, "as many as the operator's file names"


def test_a_replica_that_has_left_is_other() -> None:
    fleet = fleet_of("r1", "r2")
    losses = losses_of(fleet)
    for name in ("r1", "r2"):
        losses.answered(placed(fleet, name), altered(DONE, replica=name, delivered_tokens=0, prompt_tokens=170))
        losses.forgotten(name)
    assert counted(losses, "router_lost_tokens") == {
        (WORKLOAD, CHAT, "acme", OTHER): 20,
        (STALE, CHAT, "acme", OTHER): 320,
    }
    assert counted(losses, "router_token_mismatch") == {("m", OTHER): 2}


def test_tokens_counted_otherwise_are_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    fleet, clock = fleet_of("r1"), Clock()
    losses = losses_of(fleet, clock=clock)
    with caplog.at_level(logging.WARNING, "router.losses"):
        for clock.now_s in (0.0, 1.0, 2.0, 700.0):
            losses.answered(placed(fleet, "r1"), altered(DONE, prompt_tokens=168))
        losses.answered(placed(fleet, "r1"), altered(DONE, prompt_tokens=168, basis="approximate"))
        losses.answered(placed(fleet, "r1"), DONE)
    assert counted(losses, "router_token_mismatch") == {("m", "r1"): 4}
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(" requests")[0][-7:] for text in told] == ["(1 such", "(4 such"]
    assert "168 prompt tokens of m on /v1/chat/completions where the router counted 165" in told[0]


def reply(prompt_tokens: int, cached: int | None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    return ok(json.dumps({"usage": {"prompt_tokens": prompt_tokens, "prompt_tokens_details": details}}).encode())


async def test_what_replicas_deliver_reaches_metrics_and_the_fit() -> None:
    """Ids are given, so ours are the engine's; of an older engine silence is a miss."""
    answers = [reply(160, 0), reply(160, 128), reply(160, None)]

    async def answer(exchange) -> None:
        await exchange.send(answers[min(len(exchange.replica.seen), len(answers)) - 1])

    body = b'{"model":"m","prompt":[%b],"max_tokens":1}' % b",".join(b"%d" % token for token in range(160))
    async with fake_replica(answer) as replica, router_over(replica, tokenizer__where="local") as up:
        for _ in range(3):
            assert (await posted(up.url, body)).status == 200
        text = up.metrics.exposition().decode()
    labels = 'replica="r1",route="/v1/completions",tenant=""'
    told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if labels in line}
    assert told['router_lost_tokens_total{reason="stale",replica="r1",route="/v1/completions",tenant=""}'] == 16 + 144
