"""The doctor over streams of prompts: every planted breaker is found, healthy traffic is left alone."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.doctor.checkup import Doctor
from router.doctor.findings import kinds
from router.doctor.parts import asked
from tests.router.doctor.traffic import (
    BREAKERS,
    CHAT,
    broken,
    chats,
    diagnosed,
    found,
    hits,
    moment,
    prose,
    truncated,
)

RECORDED = json.loads((Path(__file__).parents[2] / "recordings/doctor_prefix_breakers.json").read_text("utf-8"))
TRACES = Path(os.environ.get("ROUTER_TEST_TRACES", Path(__file__).parents[4] / "shared"))


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair["name"]) for pair in RECORDED["pairs"]])
def test_reported_breakers_are_found_in_two_bodies(pair):
    diagnosis = diagnosed([pair["a"], pair["b"]], pair=True)
    where = pair.get("first_difference")
    if where is None:
        assert not diagnosis.breaks
        assert not any(family.findings for family in diagnosis.families)
        return
    (one,) = found(diagnosis)
    assert (one.path, one.offset, one.block) == (where["path"], where["char_offset"], 0)
    later = len(pair["b"]["messages"][0]["content"]) - where["char_offset"]
    assert one.lost_tokens == pytest.approx(later / 4, rel=0.05)
    assert one.saved_tokens == pytest.approx(one.lost_tokens, abs=16)
    assert all(one.values)
    assert "move" in one.advice


@pytest.mark.parametrize("name", BREAKERS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_planted_breaker_is_found(name, seed):
    diagnosis = diagnosed(broken(name, seed))
    assert kinds(diagnosis) == {BREAKERS[name][0]: 1}
    (one,) = found(diagnosis)
    assert one.lost_fraction >= 0.05
    assert one.requests >= 3


MENDED = sorted(set(BREAKERS) - {"model", "template", "tool set", "clock in a tool", "texts"})


@pytest.mark.parametrize("name", MENDED)
def test_mending_saves_most_of_what_is_lost(name):
    (one,) = found(diagnosed(broken(name)))
    assert one.saved_tokens > 0.5 * one.lost_tokens


def test_a_clock_ahead_of_shuffled_texts_is_told_apart_from_them():
    bodies = broken("texts")
    for number, body in enumerate(bodies):
        clock = f"Current time: {moment(number)}\nAnswer by these documents alone, and say which of them told you.\n"
        body["messages"][1]["content"] = clock + body["messages"][1]["content"]
    first, second = found(diagnosed(bodies))
    assert [(one.cause.kind, one.path) for one in (first, second)] == [
        ("timestamp", "messages[1].content"),
        ("document_order", "messages[1].content"),
    ]
    assert first.offset < 40 < second.offset


def test_a_history_cut_at_its_beginning_is_found():
    (one,) = found(diagnosed(truncated()))
    assert one.cause.kind == "truncated_history"
    assert one.message == 1
    assert one.saved_tokens is None


def test_two_breakers_in_one_prompt_are_both_found():
    bodies = broken("clock")
    for number, body in enumerate(bodies):
        rules = body["messages"][0]["content"].split("\n")
        body["messages"][0]["content"] = "\n".join([*rules[:8], f"trace_id: {number * 7919:016x}", *rules[8:]])
    first, second = found(diagnosed(bodies))
    assert (first.cause.kind, second.cause.kind) == ("timestamp", "request_id")
    assert first.offset < second.offset
    assert first.saved_tokens < second.saved_tokens  # mending the first alone reaches as far as the second


@pytest.mark.parametrize("seed", range(5))
def test_healthy_chats_have_no_finding(seed):
    assert not any(family.findings for family in diagnosed(chats(seed)).families)


def test_a_salt_per_tenant_is_wanted():
    bodies = [{**body, "cache_salt": f"tenant {number % 4}"} for number, body in enumerate(chats())]
    assert not diagnosed(bodies).breaks


def test_two_models_side_by_side_are_healthy():
    bodies = [{**body, "model": name} for name in ("a", "b") for body in chats()]
    assert not diagnosed(bodies).breaks


@st.composite
def services(draw):
    """Several services with prompts of their own, their users' chats interleaved, some with a clock at the end."""
    random_of = draw(st.randoms(use_true_random=False))
    streams = []
    for number in range(draw(st.integers(1, 3))):
        options = {
            "users": draw(st.integers(1, 6)),
            "turns": draw(st.integers(1, 4)),
            "messages": draw(st.integers(1, 80)),
        }
        stream = chats(random_of.randrange(1 << 30), **options)
        if draw(st.booleans()):
            for place, body in enumerate(stream):
                body["messages"][-1]["content"] += f"\nIt is 10:{place:02}."
        if draw(st.booleans()):
            for body in stream:
                body.pop("tools")
        streams.append([{**body, "model": f"m{number % 2}"} for body in stream])
    mixed = []
    while any(streams):
        stream = random_of.choice([stream for stream in streams if stream])
        mixed.append(stream.pop(0))
    return mixed


@settings(max_examples=60, deadline=None)
@given(services())
def test_no_false_alarm_on_generated_services(bodies):
    diagnosis = diagnosed(bodies)
    assert kinds(diagnosis) == {}
    assert diagnosis.requests == len(bodies)


@pytest.mark.parametrize("name", ["miniswe_20", "taubench_25"])
def test_no_false_alarm_on_real_agents(name):
    file = TRACES / "traces" / f"lmcache_agent_{name}_sessions.jsonl.gz"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    doctor = Doctor()
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            doctor.seen(asked("/v1/completions", {"prompt": row["input"]}, row["timestamp"] / 1e6))
    diagnosis = doctor.diagnosis(hits)
    assert diagnosis.requests > 400
    assert kinds(diagnosis) == {}


def test_a_clock_planted_in_real_prompts_is_found():
    file = TRACES / "traces" / "lmcache_agent_miniswe_20_sessions.jsonl.gz"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    doctor = Doctor()
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        for number, row in enumerate(map(json.loads, rows)):
            doctor.seen(asked("/v1/completions", {"prompt": f"It is 10:{number % 60:02}:11.\n{row['input']}"}))
    assert kinds(doctor.diagnosis(hits))["timestamp"] >= 1


def test_long_streams_are_sampled_and_reckoned_up():
    few, many = diagnosed(broken("clock", users=10, turns=2)), diagnosed(broken("clock", users=150, turns=2))
    (one,), (other,) = found(few), found(many)
    assert other.requests == pytest.approx(300, rel=0.1)
    assert other.lost_fraction == pytest.approx(one.lost_fraction, abs=0.1)


def test_exact_tokens_where_they_can_be_had():
    bodies = broken("clock")
    counted = diagnosed(
        bodies, tokens=lambda route, body: [ord(char) for char in str(body["messages"])], block_tokens=16
    )
    (one,) = found(counted)
    assert one.exact
    text = str(bodies[0]["messages"])
    assert (
        one.block
        == next(i for i, (a, b) in enumerate(zip(text, str(bodies[1]["messages"]), strict=False)) if a != b) // 16
    )


def test_nothing_is_kept_of_what_holds_no_prompt():
    doctor = Doctor()
    for body in ({}, {"messages": []}, {"messages": "x"}, {"messages": [None, 3]}, {"prompt": None}, {"input": [[]]}):
        doctor.seen(asked(CHAT, body))
    assert doctor.diagnosis(hits).families == ()


def test_same_stream_same_diagnosis():
    assert diagnosed(broken("texts")) == diagnosed(broken("texts"))


def test_rare_breakage_is_told_as_minor():
    bodies = chats(users=20, turns=4)
    for number in range(0, len(bodies), 16):
        text = bodies[number]["messages"][0]["content"]
        bodies[number]["messages"][0]["content"] = f"nonce={number:08x}f;\n{text}"
    diagnosis = diagnosed(bodies)
    assert not diagnosis.breaks
    assert [one.cause.kind for family in diagnosis.families for one in family.findings] == ["request_id"]


def test_prompts_that_share_nothing_are_families_of_their_own():
    draw = random.Random(5)
    bodies = [{"prompt": "".join(chr(draw.randrange(97, 123)) for _ in range(2000))} for _ in range(400)]
    diagnosis = diagnosed(bodies, route="/v1/completions")
    assert len(diagnosis.families) == 256
    assert not diagnosis.breaks
    assert prose(draw, 3)


def test_prompts_shorter_than_a_block_are_told():
    diagnosis = diagnosed([{"prompt": "what is it?"}] * 10, route="/v1/completions")
    assert not diagnosis.breaks
    assert diagnosis.notes[0].startswith("10 of 10 prompts are shorter than a block of 16 tokens")
