"""What a live finding's mending would save, replayed on what is kept of prompts."""

import msgspec
import orjson
import pytest

from router.doctor.live_savings import told, with_savings
from tests.router.doctor.test_live import looked
from tests.router.doctor.traffic import BREAKERS, broken, chats, hits, truncated

NOT_EDITABLE = {"clock in a tool", "tool set", "model", "template", "texts"}


def answered(bodies, **options):
    """What an admin port answers, as it arrives."""
    live = looked(bodies, **options)
    document = live.document()
    kept = live.sketches({one["route"] for one in document["findings"]})
    sketches = {label: [msgspec.to_builtins(one) for one in told(route)] for label, route in kept.items()}
    return orjson.loads(orjson.dumps({**document, "sketches": sketches}))


@pytest.mark.parametrize("name", [name for name in BREAKERS if name not in NOT_EDITABLE])
def test_mending_saves_about_what_is_lost(name):
    answer = with_savings(answered(broken(name, users=30)), hits)
    one = answer["findings"][0]
    assert 0.9 * one["lost_tokens"] < one["saved_tokens"] < 1.6 * one["lost_tokens"]
    assert one["saved_tokens"] < answer["routes"][0]["prompt_tokens"]
    assert "sketches" not in answer


@pytest.mark.parametrize("name", sorted(NOT_EDITABLE))
def test_what_nobody_can_edit_has_no_saving(name):
    answer = with_savings(answered(broken(name, users=30)), hits)
    assert answer["findings"][0]["saved_tokens"] is None


def test_two_breakers_are_mended_from_the_front():
    pairs = zip(broken("tool order", users=30), broken("clock in the middle", users=30), strict=True)
    answer = with_savings(answered([body for pair in pairs for body in pair]), hits)
    first, second = sorted(answer["findings"], key=lambda one: one["block"])
    assert (first["kind"], second["kind"]) == ("tool_order", "timestamp")
    assert 0 < first["saved_tokens"] < second["saved_tokens"]  # which is of both together


def test_block_is_of_the_place():
    (one,) = answered(broken("clock in the middle", users=30))["findings"]
    text = broken("clock in the middle")[1]["messages"][0]["content"]
    tools = orjson.dumps(broken("clock in the middle")[1]["tools"])
    assert one["offset"] < len(text)
    assert (one["block"], one["exact"]) == ((len(tools) - 5 + one["offset"]) // 64, False)


def test_sketches_tell_no_hash_and_no_text():
    live = looked(broken("request id"))
    (route,) = live.sketches(["r"]).values()
    hashes = {unit.key for one in route for unit in one.units} | {value for one in route for _, value in one.roots}
    seen = told(route)
    assert not hashes & {line.number for one in seen for line in one.lines}
    assert max(line.number for one in seen for line in one.lines) < 10_000
    assert b"Rule 1" not in orjson.dumps(msgspec.to_builtins(seen))


def test_healthy_traffic_and_answers_without_sketches_are_left_as_they_are():
    assert with_savings(answered(chats()), hits)["findings"] == []
    answer = answered(truncated())
    del answer["sketches"]
    assert [one["saved_tokens"] for one in with_savings(answer, hits)["findings"]] == [None]
