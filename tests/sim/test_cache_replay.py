"""Exact replays: published traces give the published numbers, and small ones those of a brute-force twin."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cache_replay import InfiniteCache, LruCache, prompts_of, replayed
from sim.traces import open_trace
from sim.traces.opening import read

SHARED = Path(os.environ.get("ROUTER_TEST_TRACES") or Path(__file__).parents[3] / "shared") / "traces"
CONVERSATION = SHARED / "mooncake_conversation_trace.jsonl.gz"
SYNTHETIC = SHARED / "mooncake_synthetic_trace.jsonl.gz"
WEKA = SHARED / "weka_claude_code_400_sessions.rle.jsonl.gz"
MINISWE = SHARED / "lmcache_agent_miniswe_20_sessions.jsonl.gz"
TAUBENCH = SHARED / "lmcache_agent_taubench_25_sessions.jsonl.gz"

published = pytest.mark.skipif(not CONVERSATION.exists(), reason=f"no published traces in {SHARED}")


@pytest.fixture(scope="module")
def conversation():
    return read(CONVERSATION).table


@pytest.fixture(scope="module")
def synthetic():
    return read(SYNTHETIC).table


def infinite(table, caches=1):
    return replayed(table.prompts(), table.block_tokens, [InfiniteCache() for _ in range(caches)])


def full_blocks_only(table):
    return ((tokens, blocks[: tokens // table.block_tokens]) for tokens, blocks in table.prompts())


@published
def test_mooncake_conversation_in_one_infinite_cache(conversation):
    found = infinite(conversation)
    assert (found.requests, found.prompt_tokens) == (12_031, 144_793_823)
    assert conversation.unique_blocks == 182_790
    assert (found.ids, found.full_blocks) == (288_500, 276_491)
    assert round(found.id_hit_fraction, 5) == 0.36641
    assert round(found.hit_fraction, 5) == 0.37338
    assert round(found.full_hit_fraction, 5) == 0.38190


@published
@pytest.mark.parametrize(("replicas", "wanted"), [(4, 0.1955), (8, 0.1390), (16, 0.1010)])
def test_mooncake_conversation_round_robin(conversation, replicas, wanted):
    assert round(infinite(conversation, replicas).hit_fraction, 4) == wanted


@published
@pytest.mark.parametrize(("tokens", "wanted"), [(1_000_000, 0.0559), (3_000_000, 0.1437), (10_000_000, 0.2976)])
def test_mooncake_conversation_in_a_cache_of_limited_size(conversation, tokens, wanted):
    found = replayed(full_blocks_only(conversation), 512, [LruCache(tokens // 512)])
    assert round(found.hit_fraction, 4) == wanted


@published
def test_mooncake_synthetic(synthetic):
    found = infinite(synthetic)
    assert (found.requests, synthetic.unique_blocks, found.ids) == (3_993, 43_924, 121_877)
    assert round(found.id_hit_fraction, 5) == 0.63960
    assert round(found.hit_fraction, 5) == 0.65043
    assert round(found.full_hit_fraction, 5) == 0.65944
    assert [round(infinite(synthetic, count).hit_fraction, 4) for count in (4, 8, 16)] == [0.3712, 0.2305, 0.1382]
    limited = replayed(full_blocks_only(synthetic), 512, [LruCache(3_000_000 // 512)])
    assert round(limited.hit_fraction, 4) == 0.3210


@published
def test_cutting_a_block_into_32_changes_little():
    workload = open_trace(SYNTHETIC, block_tokens=16, cache_outputs=False)
    found = replayed(prompts_of(workload), 16, [InfiniteCache()])
    assert round(found.hit_fraction, 4) == 0.6512


@published
def test_sessions_of_the_conversation_trace_are_inferred():
    turns = Counter(arrival.session for arrival in open_trace(CONVERSATION).arrivals)
    assert len(turns) == 8_056
    assert max(turns.values()) == 43


@published
def test_weka_sessions_hit_themselves():
    """The published .9632 is of 710 sessions; these are 400 of them."""
    trace = read(WEKA)
    assert len(trace.table) == 28_804
    assert infinite(trace.table).hit_fraction == pytest.approx(0.9632, abs=0.001)


@published
@pytest.mark.parametrize(
    ("path", "requests", "wanted"),
    [(MINISWE, 402, [0.936, 0.761, 0.555, 0.257]), (TAUBENCH, 471, [0.823, 0.553, 0.368, 0.169])],
    ids=["miniswe", "taubench"],
)
def test_agent_logs_cut_into_bytes(path, requests, wanted):
    """Published of blocks of 64 characters; these are of 64 bytes."""
    workload = open_trace(path)
    assert workload.requests == requests
    found = [
        replayed(prompts_of(workload), 16, [InfiniteCache() for _ in range(count)]).hit_fraction
        for count in (1, 4, 8, 16)
    ]
    assert found == pytest.approx(wanted, abs=0.002)


def test_a_last_block_that_is_not_full_never_hits_as_tokens():
    prompts = [(600, [1, 2])] * 2
    found = replayed(prompts, 512, [InfiniteCache()])
    assert (found.hit_tokens, found.prompt_tokens) == (512, 1200)
    assert (found.hit_full_blocks, found.full_blocks) == (1, 2)
    assert (found.hit_ids, found.ids) == (2, 4)


def test_the_last_token_is_always_computed():
    found = replayed([(1024, [1, 2])] * 2, 512, [InfiniteCache()])
    assert (found.hit_tokens, found.hit_full_blocks) == (512, 2)


def test_nothing_asked_is_no_fraction():
    found = replayed([], 16, [InfiniteCache()])
    assert found.hit_fraction is None
    assert found.full_hit_fraction is None
    assert found.id_hit_fraction is None


def test_a_cache_of_no_blocks_hits_nothing_and_a_negative_one_is_none():
    assert replayed([(40, [1, 2])] * 3, 16, [LruCache(0)]).hit_tokens == 0
    with pytest.raises(ValueError, match="can't hold -1"):
        LruCache(-1)


PATHS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=25)


def numbered(paths):
    """Chained blocks: one for each whole prefix."""
    return [[hash_free(tuple(path[: end + 1])) for end in range(len(path))] for path in paths]


def hash_free(path):
    number = 0
    for step in path:
        number = number * 4 + step + 1
    return number


@given(PATHS, st.integers(0, 12))
def test_lru_is_that_of_a_plain_list(paths, capacity):
    cache, young_first = LruCache(capacity), []
    for blocks in numbered(paths):
        hits = 0
        while hits < len(blocks) and blocks[hits] in young_first:
            hits += 1
        assert cache.served(blocks) == hits
        young_first = (blocks + [block for block in young_first if block not in blocks])[:capacity]


@given(PATHS)
def test_a_large_lru_is_infinite(paths):
    small, large = LruCache(1000), InfiniteCache()
    for blocks in numbered(paths):
        assert small.served(blocks) == large.served(blocks)
