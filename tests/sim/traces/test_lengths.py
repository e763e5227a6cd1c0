"""Arrivals and lengths alone: nothing may be said of hits."""

from pathlib import Path

import pytest

from sim.traces import describe, open_trace

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize("name", ["azure.csv", "burstgpt.csv", "otel.jsonl", "openai_batch_output.jsonl"])
def test_lengths_only_is_said_and_no_hit_rate_is(name):
    workload, told = open_trace(SAMPLES / name), describe(SAMPLES / name)
    assert not workload.has_prefixes
    assert "lengths only: no prefix analysis" in workload.notes
    assert "lengths only: no prefix analysis" in told.notes
    assert told.prefixes is None
    assert {one.keys for one in workload.arrivals} == {()}


def test_azure_times_have_seven_digits():
    assert [one.time_s for one in open_trace(SAMPLES / "azure.csv").arrivals] == pytest.approx(
        [0.0, 0.052, 2.0], abs=2e-6
    )


def test_failed_requests_are_left_out_and_said():
    workload = open_trace(SAMPLES / "burstgpt.csv", replay="think")
    assert workload.requests == 2
    assert any("a request that failed (1)" in note for note in workload.notes)
    assert [one.think_s for one in workload.arrivals] == [None, 38.5]  # 40 s between starts, 1.5 of them answering
