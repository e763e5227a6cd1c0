"""A small sample of every format: it is known by its first row, and read as its schema says."""

from pathlib import Path

import pytest

from sim.traces import describe, open_trace
from sim.traces.formats import FORMATS, detected

SAMPLES = Path(__file__).parent / "samples"

KNOWN = {
    # sample: format, requests, sessions, mean prompt tokens, mean answer tokens, tokens of a block, unique blocks
    "aiperf.jsonl": ("mooncake", 2, 1, 1512.0, 80.0, 512, 4),
    "aiperf_texts.jsonl": ("aiperf", 2, 2, 40.5, 30.0, 16, 4),
    "azure.csv": ("azure", 3, None, 8098 / 3, 15.0, None, None),
    "bailian.jsonl": ("bailian", 4, 2, 63.25, 13.75, 16, 10),
    "burstgpt.csv": ("burstgpt", 2, 1, 779.5, 124.0, None, None),
    "conversations.jsonl": ("conversations", 2, 1, 71.0, 7.0, 16, 5),
    "dynamo_agentic.jsonl": ("dynamo-agentic", 3, 2, 176 / 3, 40 / 3, 16, 8),
    "dynamo_recorder.jsonl": ("dynamo-recorder", 2, 1, 45.0, 9.0, 16, 5),
    "langfuse.jsonl": ("langfuse", 2, 2, 63.0, 7.0, 16, 5),
    "litellm.jsonl": ("litellm", 3, 3, 230 / 3, 5.0, 16, 5),
    "lmcache.jsonl": ("lmcache", 2, 1, 43.5, 4.0, 16, 3),
    "mooncake.jsonl": ("mooncake", 3, 2, 3236 / 3, 370 / 3, 512, 5),
    "mooncake.jsonl.gz": ("mooncake", 3, 2, 3236 / 3, 370 / 3, 512, 5),
    "openai_batch.jsonl": ("openai-batch", 2, 1, 63.0, 40.0, 16, 3),
    "openai_batch_output.jsonl": ("openai-batch-output", 2, None, 61.5, 9.5, None, None),
    "otel.jsonl": ("otel", 2, None, 600.0, 25.0, None, None),
    "otlp.json": ("otlp", 1, 1, 62.0, 8.0, 16, 4),
    "payload.jsonl": ("payload", 2, 2, 49.5, 130.5, 16, 5),
    "payloads.json": ("payloads", 2, 1, 63.5, 5.0, 16, 4),
    "router.jsonl": ("router", 3, 1, 130 / 3, 19 / 3, 16, 4),
    "servegen.jsonl": ("servegen", 2, 1, 36.0, 256.0, 16, 3),
    "sharegpt.json": ("sharegpt", 2, 1, 32.0, 12.5, 16, 3),
    "vllm_custom.jsonl": ("vllm-custom", 2, 1, 37.5, 134.0, 16, 2),
    "weka.jsonl": ("weka", 4, 3, 306.5, 26.25, 64, 13),
    "weka_session.json": ("weka", 3, 2, 970 / 3, 100 / 3, 64, 9),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_sample_is_read_as_its_format_says(name):
    told = describe(SAMPLES / name)
    assert (
        told.format,
        told.requests,
        told.sessions and told.sessions.count,
        told.prompt.mean,
        told.output.mean,
        told.prefixes and told.prefixes.block_tokens,
        told.prefixes and told.prefixes.unique_ids,
    ) == pytest.approx(KNOWN[name])


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("replay", ["timestamps", "think"])
def test_arrivals_are_in_time_and_the_same_again(name, replay):
    workload = open_trace(SAMPLES / name, replay=replay)
    arrivals = list(workload.arrivals)
    assert arrivals == list(workload.arrivals) == list(open_trace(SAMPLES / name, replay=replay).arrivals)
    assert [one.number for one in arrivals] == list(range(workload.requests))
    times = [one.time_s for one in arrivals]
    assert times == sorted(times)
    assert times[0] == 0.0
    for one in arrivals:
        told = one.keys != ()
        assert len(one.keys) == (one.prompt_tokens + one.output_tokens) // workload.block_tokens * told
        assert {len(key) for key in one.keys} <= {16}
        assert len(set(one.keys)) == len(one.keys)


@pytest.mark.parametrize("name", KNOWN)
def test_keys_are_chained(name):
    """Equal keys have equal keys before them: what a prefix index relies on."""
    before = {}
    for one in open_trace(SAMPLES / name).arrivals:
        for place, key in enumerate(one.keys):
            assert before.setdefault(key, one.keys[:place]) == one.keys[:place]


def test_every_sample_and_every_format_is_here():
    assert {path.name for path in SAMPLES.iterdir()} == set(KNOWN)
    assert {told[0] for told in KNOWN.values()} == {known.name for known in FORMATS}


def test_a_row_of_no_format_is_of_none():
    assert detected({"question": 1}) is None
    assert detected({}) is None
