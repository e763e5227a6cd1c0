"""Readings of recorded vLLM 0.32 servers, and of texts as older and odd servers print them."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engine_metrics import EngineMetrics, parse

RECORDINGS = Path(__file__).parent.parent / "recordings"


def recorded(name: str) -> str:
    return gzip.decompress((RECORDINGS / f"metrics_{name}.txt.gz").read_bytes()).decode()


def test_a_busy_server():
    assert parse(recorded("waiting")) == EngineMetrics(
        running=2,
        waiting=4,
        kv_used_fraction=pytest.approx(0.07936507936507942),
        block_tokens=32,
        capacity_blocks=64,
        prefix_caching=True,
        hash_algorithm="sha256",
        queried_tokens_total=466,
        hit_tokens_total=32,
        external_tokens_total=0,
        started_s=1796007491.44,
        engines=1,
    )


def test_a_loaded_pool_and_another_hash():
    found = parse(recorded("under_load"))
    assert (found.kv_used_fraction, found.capacity_blocks, found.hash_algorithm) == (0.25, 49, "sha256_cbor")
    assert found.usable_blocks == 48


def test_two_engines_behind_one_server_are_summed_but_their_pool_is_told_whole_by_each():
    found = parse(recorded("dp2"))
    assert found.engines == 2
    assert (found.queried_tokens_total, found.hit_tokens_total) == (280 + 350, 256)
    assert found.capacity_blocks == 256  # 2 engines of 128; kv_cache_size_tokens says 4096 each, in blocks of 32
    assert found.usable_blocks == 254


def test_engines_are_summed_and_their_shares_averaged():
    text = recorded("dp2")
    for old, new in [
        (
            'num_requests_running{engine="0",model_name="tiny"} 0.0',
            'num_requests_running{engine="0",model_name="tiny"} 3.0',
        ),
        (
            'num_requests_running{engine="1",model_name="tiny"} 0.0',
            'num_requests_running{engine="1",model_name="tiny"} 4.0',
        ),
        (
            'kv_cache_usage_perc{engine="1",model_name="tiny"} 0.0',
            'kv_cache_usage_perc{engine="1",model_name="tiny"} 0.5',
        ),
    ]:
        assert old in text
        text = text.replace(old, new)
    found = parse(text)
    assert (found.running, found.kv_used_fraction) == (7, 0.25)


def test_old_names():
    found = parse(
        'vllm:num_requests_running{model_name="m"} 1.0\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
        'vllm:gpu_prefix_cache_queries_total{model_name="m"} 10.0\n'
        'vllm:gpu_prefix_cache_queries_created{model_name="m"} 1.7e+09\n'
        'vllm:gpu_prefix_cache_hits_total{model_name="m"} 4.0\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="None",enable_prefix_caching="False"} 1.0\n'
    )
    assert found == EngineMetrics(
        running=1,
        kv_used_fraction=0.5,
        block_tokens=16,
        prefix_caching=False,
        queried_tokens_total=10,
        hit_tokens_total=4,
        engines=1,
    )


def test_new_names_win_over_old_ones():
    assert parse("vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1\n").kv_used_fraction == 0.1


@pytest.mark.parametrize(
    "text",
    ["", "hello", "# HELP vllm:num_requests_running x", "vllm:num_requests_running", "vllm:num_requests_running NaN"],
)
def test_what_is_missing_is_unknown_not_zero(text):
    assert parse(text) == EngineMetrics()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0", "abc", "1e400"])
def test_numbers_that_make_no_sense_are_passed_over(value):
    assert parse(f"vllm:num_requests_waiting {value}\nvllm:num_requests_running 2\n") == EngineMetrics(
        running=2, engines=1
    )


def test_a_metric_that_only_begins_alike_is_another_one():
    assert parse('vllm:num_requests_waiting_by_reason{reason="capacity"} 3.0\n') == EngineMetrics()


def test_hit_fraction_needs_queries_and_never_exceeds_one():
    assert EngineMetrics(queried_tokens_total=0, hit_tokens_total=0).hit_fraction is None
    assert EngineMetrics(queried_tokens_total=10).hit_fraction is None
    assert EngineMetrics(queried_tokens_total=10, hit_tokens_total=20).hit_fraction == 1.0
    assert parse(recorded("after_replay")).hit_fraction == 6112 / 16235


@pytest.mark.parametrize(
    ("earlier", "now", "restarted"),
    [
        (EngineMetrics(started_s=100.0), EngineMetrics(started_s=100.0), False),
        (EngineMetrics(started_s=100.0), EngineMetrics(started_s=107.0), True),
        (EngineMetrics(queried_tokens_total=50), EngineMetrics(queried_tokens_total=50), False),
        (EngineMetrics(queried_tokens_total=50), EngineMetrics(queried_tokens_total=0), True),
        (EngineMetrics(), EngineMetrics(started_s=7.0, queried_tokens_total=3), False),
    ],
)
def test_restart_is_seen_by_start_time_or_by_a_counter_that_went_backward(earlier, now, restarted):
    assert now.restarted_since(earlier) is restarted


@given(st.text() | st.binary().map(lambda data: "vllm:cache_config_info{" + data.decode("latin-1") + "} 1.0"))
def test_any_text_is_read_without_error(text):
    found = parse(text)
    assert found.kv_used_fraction is None or 0 <= found.kv_used_fraction <= 1
