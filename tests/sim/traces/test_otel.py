"""Spans of generative AI, in OTLP and flat."""

import json
from pathlib import Path

import pytest

from sim.traces import TraceError, open_trace
from sim.traces.otel import attributes
from sim.traces.rows import BadRow

SAMPLES = Path(__file__).parent / "samples"


def test_otlp():
    (told,) = open_trace(SAMPLES / "otlp.json").arrivals
    assert (told.session, told.model, told.route, told.cached_tokens, told.output_tokens) == ("k1", "m", "chat", 32, 8)
    assert len(told.keys) == (told.prompt_tokens + 8) // 16


def test_spans_without_contents_tell_lengths():
    workload = open_trace(SAMPLES / "otel.jsonl")
    told = list(workload.arrivals)
    assert not workload.has_prefixes
    assert [(one.prompt_tokens, one.output_tokens, one.cached_tokens) for one in told] == [
        (500, 20, None),
        (700, 30, 480),
    ]
    assert told[1].time_s == pytest.approx(4.0)


def test_attributes_in_both_forms():
    typed = [
        {"key": "a", "value": {"intValue": "5"}},
        {"key": "b", "value": {"arrayValue": {"values": [{"stringValue": "x"}]}}},
        {"key": "c", "value": {"kvlistValue": {"values": [{"key": "d", "value": {"boolValue": True}}]}}},
    ]
    assert attributes(typed) == {"a": "5", "b": ["x"], "c": {"d": True}}
    assert attributes({"a": 5}) == {"a": 5}
    with pytest.raises(BadRow, match="attributes is no object"):
        attributes("a=5")


def test_no_generation_at_all_is_told(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text(
        json.dumps({"attributes": {"gen_ai.operation.name": "execute_tool"}, "start_time": 1}) + "\n", "utf-8"
    )
    with pytest.raises(TraceError, match=r"holds no request \(otel\): a span that is no generation \(1\)"):
        open_trace(file)
