"""Sessions of coding agents: ids of their own, heads to share, nested agents, starts that are drawn."""

import json
from pathlib import Path

import pytest

from sim.traces import TraceError, open_trace

SAMPLE = Path(__file__).parent / "samples" / "weka.jsonl"


def test_ids_are_the_sessions_own():
    first, second = (next(one for one in open_trace(SAMPLE).arrivals if one.session == name) for name in ("s1", "s2"))
    assert set(first.keys).isdisjoint(second.keys)


@pytest.mark.parametrize(("tokens", "shared"), [(64, 1), (150, 2), (10_000, 3)])
def test_a_head_can_be_shared_up_to_its_length(tokens, shared):
    """Tools and system prompt of both sessions are 192 tokens, three blocks."""
    told = {}
    for one in open_trace(SAMPLE, shared_head_tokens=tokens).arrivals:
        told.setdefault(one.session, []).append(one.keys)
    assert told["s1"][0][:shared] == told["s2"][0][:shared]
    assert set(told["s1"][0][shared:]).isdisjoint(told["s2"][0][shared:])
    assert told["s1"][0][:5] == told["s1"][1][:5]


def test_global_ids_are_everybodys(tmp_path):
    rows = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps({**row, "hash_id_scope": "global"}) + "\n" for row in rows), "utf-8")
    told = {one.session: one.keys for one in open_trace(file).arrivals if one.prompt_tokens in (330, 256)}
    assert told["s1"][:4] == told["s2"][:4]


def test_runs_and_lists_of_ids_are_the_same(tmp_path):
    rows = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    for row in rows:
        for request in row["requests"]:
            if "hash_ids" in request:
                ids = request.pop("hash_ids")
                request["hash_runs"] = [[ids[0], ids[-1]]]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert [one.keys for one in open_trace(file).arrivals] == [one.keys for one in open_trace(SAMPLE).arrivals]


def test_nested_agents_count_from_their_own_start():
    nested = next(one for one in open_trace(SAMPLE).arrivals if one.session == "s1/a1")
    assert (nested.time_s, nested.model, nested.prompt_tokens) == (21.0, "small", 140)


def test_pauses_can_be_capped_and_starts_drawn_otherwise():
    usual = {one.session: one.time_s for one in open_trace(SAMPLE).arrivals}
    capped = [one.time_s for one in open_trace(SAMPLE, idle_cap_s=5.0).arrivals if one.session == "s1"]
    assert capped == [0.0, 10.0]  # 5 to the nested agent's request, 5 from there
    assert {one.session: one.time_s for one in open_trace(SAMPLE, seed=1).arrivals}["s2"] != usual["s2"]
    assert max(one.time_s for one in open_trace(SAMPLE, session_gap_s=0.001).arrivals if one.session == "s2") < 0.1


def test_think_times_and_first_tokens_are_as_told():
    told = [one for one in open_trace(SAMPLE, replay="think").arrivals if one.session == "s1"]
    assert [one.think_s for one in told] == [None, 26.0]
    assert [one.ttft_s for one in told] == [1.5, None]


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        ({"block_size": 64, "requests": []}, "no known trace format"),
        ({"id": "a", "block_size": 64, "requests": 7}, "requests is no list"),
        ({"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_runs": [[3, 1]]}]}, "no range"),
        (
            {"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1, 2, 3]}]},
            "another number",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path, session, reason):
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(session) + "\n", "utf-8")
    with pytest.raises(TraceError, match=reason):
        open_trace(file)
