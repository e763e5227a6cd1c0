"""What a sweep sends: the same requests at every rate, of a seed where seeds mean something."""

import json
import pickle
from pathlib import Path

import pytest

from sim.traces.opening import read
from sim.traffic import PresetTraffic, TraceTraffic


@pytest.fixture
def trace(tmp_path: Path) -> TraceTraffic:
    path = tmp_path / "log.jsonl"
    rows = [
        {"timestamp": 500 * place, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]} for place in range(9)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return TraceTraffic(read(path))


def test_a_trace_keeps_its_requests_and_stretches_its_times(trace):
    assert trace.rate == pytest.approx(9 / 4)
    slow, fast = (list(trace.at(rate).arrivals) for rate in (1.0, 4.0))
    assert [one.keys for one in slow] == [one.keys for one in fast]
    assert slow[-1].time_s == pytest.approx(8.0)
    assert fast[-1].time_s == pytest.approx(2.0)


def test_it_goes_to_other_processes(trace):
    there = pickle.loads(pickle.dumps(trace))  # noqa: S301 made here
    assert list(there.at(2.0).arrivals) == list(trace.at(2.0).arrivals)


def test_every_seed_of_a_trace_is_the_same(trace):
    assert list(trace.at(2.0, 1).arrivals) == list(trace.at(2.0, 2).arrivals)
    assert "seeds are those of the policies alone: the trace stays the same" in trace.notes(2.0, 3)
    assert "seeds are those of the policies alone: the trace stays the same" not in trace.notes(2.0, 1)


def test_a_preset_has_other_requests_with_another_seed():
    chat = PresetTraffic("chat", (("requests", 20),))
    one, same, other = (list(chat.at(2.0, seed).arrivals) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert chat.told == {"preset": "chat", "options": {"requests": 20}}
