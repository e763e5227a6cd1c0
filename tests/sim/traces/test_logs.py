"""Gateways' and tracers' logs: who paid, what was measured, and texts that are not there."""

from pathlib import Path

import pytest

from sim.traces import open_trace
from sim.traces.logs import ask_of

SAMPLES = Path(__file__).parent / "samples"


def test_litellm():
    workload = open_trace(SAMPLES / "litellm.jsonl")
    told = list(workload.arrivals)
    assert [one.tenant for one in told] == ["team-a", "team-a", "88dc"]
    assert [one.cached_tokens for one in told] == [0, 48, 0]
    assert {one.ttft_s for one in told} == {0.5}
    assert {one.user for one in told} == {"e1"}
    assert told[0].keys[:1] == told[1].keys[:1] != ()
    assert told[2].keys == ()  # redacted
    assert any("1 requests tell lengths only" in note for note in workload.notes)


def test_langfuse_input_leaves_cached_tokens_out():
    told = list(open_trace(SAMPLES / "langfuse.jsonl", replay="think").arrivals)
    assert [one.cached_tokens for one in told] == [48, None]
    assert [one.ttft_s for one in told] == [0.25, None]
    assert [one.session for one in told] == ["s1", "t2"]
    assert {one.route for one in told} == {"answer"}
    assert told[1].time_s == pytest.approx(10.5)


def test_lmcache_is_sorted_and_empty_prompts_are_left_out():
    told = list(open_trace(SAMPLES / "lmcache.jsonl").arrivals)
    assert [one.time_s for one in told] == pytest.approx([0.0, 10.0])
    assert told[0].keys == told[1].keys[: len(told[0].keys)]
    assert told[1].output_tokens == 1  # an empty answer took a token all the same


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("hi", {"prompt": "hi"}),
        ([{"role": "user", "content": "hi"}], {"messages": [{"role": "user", "content": "hi"}]}),
        ('[{"role": "user", "content": "hi"}]', {"messages": [{"role": "user", "content": "hi"}]}),
        ({"messages": [{"role": "user"}], "tools": [1]}, {"messages": [{"role": "user"}], "tools": [1]}),
        ("[not json", {"prompt": "[not json"}),
    ],
)
def test_an_input_in_any_shape(prompt, wanted):
    assert ask_of(prompt, "yes").body == wanted


@pytest.mark.parametrize("prompt", [None, "", [], {}, 5])
def test_no_input(prompt):
    assert ask_of(prompt, None) is None
