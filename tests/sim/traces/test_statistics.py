"""Statistics of traces: of a small one by hand, of published ones as their readers published them."""

import json
import os
from pathlib import Path

import pytest

from sim.traces.opening import read
from sim.traces.statistics import Statistics, statistics

TRACES = Path(os.environ.get("ROUTER_TEST_TRACES") or Path(__file__).parents[4] / "shared") / "traces"


def told(path: Path, *rows: dict[str, object]) -> Statistics:
    path.write_text("\n".join(map(json.dumps, rows)))
    return statistics(read(path))


def row(timestamp: int, tokens: int, ids: list[int], **more: object) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": tokens, "output_length": 10, "hash_ids": ids, **more}


def test_a_small_trace_by_hand(tmp_path):
    """Two sessions of two turns and one of one; the second turns find 2 and 1 blocks, one of them all but its last."""
    found = told(
        tmp_path / "log.jsonl",
        row(0, 1024, [1, 2], session_id="a"),
        row(1000, 512, [7], session_id="b"),
        row(4000, 1536, [1, 2, 3], session_id="a"),
        row(5000, 1024, [7, 8], session_id="b"),
        row(9000, 600, [7, 9], session_id="c"),
    )
    assert (found.requests, found.prompt_tokens, found.output_tokens) == (5, 4696, 50)
    assert found.times.requests_per_s == pytest.approx(5 / 9)
    assert found.times.dispersion is None
    assert (found.sessions.count, found.sessions.turns_max, found.sessions.inferred) == (3, 2, False)
    assert found.sessions.single_turn_fraction == pytest.approx(1 / 3)
    assert found.sessions.gap_s.mean == pytest.approx(4.0)
    prefixes = found.prefixes
    assert (prefixes.ids, prefixes.unique_ids) == (10, 6)
    assert prefixes.used_once_fraction == pytest.approx(3 / 6)
    assert prefixes.ideal_hit_fraction == pytest.approx((1024 + 512 + 512) / 4696)
    assert prefixes.head_ids == 0


def test_lengths_alone_tell_nothing_of_prefixes(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,9,3\n2023-11-16 18:15:50.0,9,3\n")
    found = statistics(read(path))
    assert (found.prefixes, found.sessions, found.requests) == (None, None, 2)
    assert found.notes == ("lengths only: no prefix analysis",)


@pytest.mark.skipif(not TRACES.exists(), reason=f"no traces in {TRACES}")
def test_published_traces_are_as_published():
    found = statistics(read(TRACES / "mooncake_conversation_trace.jsonl.gz"))
    assert (found.requests, found.prompt_tokens, found.times.distinct_times) == (12_031, 144_793_823, 1_180)
    assert (found.prompt.p50, round(found.prompt.p99), found.output.p50) == (6_909, 85_400, 350)
    assert found.times.gap_variation == pytest.approx(3.03, abs=0.005)
    assert found.times.dispersion == pytest.approx(2.89, abs=0.005)
    assert (found.sessions.count, found.sessions.turns_max, found.sessions.gap_s.p50) == (8_056, 43, 123)
    prefixes = found.prefixes
    assert (prefixes.ids, prefixes.unique_ids) == (288_500, 182_790)
    assert prefixes.ideal_id_hit_fraction == pytest.approx(0.36641, abs=5e-6)
    assert prefixes.ideal_hit_fraction == pytest.approx(0.37338, abs=5e-6)
    assert prefixes.ideal_full_hit_fraction == pytest.approx(0.38190, abs=5e-6)
    assert (prefixes.head_ids, prefixes.longest_head_tokens, prefixes.headed_fraction) == (1, 512, 1.0)
    code = statistics(read(TRACES / "AzureLLMInferenceTrace_code_2023.csv.gz"))
    assert code.times.gap_variation == pytest.approx(13.2, abs=0.05)
    assert code.times.dispersion == pytest.approx(164, abs=0.5)
    assert code.times.per_minute_max == 632
