"""The pool reuses blocks in the engine's order and counts copies."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cache_events import Cleared, Removed, Stored
from sim.errors import CacheFull
from sim.kv_cache import KvCache

A, B, C, D = b"a", b"b", b"c", b"d"


def filled(cache: KvCache, *keys: bytes) -> list[int]:
    """A chain of full blocks that nobody pins any more."""
    blocks = cache.allocated(len(keys))
    cache.filled(blocks, keys, 0, len(keys))
    cache.released(blocks)
    return blocks


def test_block_0_is_never_used() -> None:
    cache = KvCache(5, 16)
    assert cache.usable_blocks == cache.free_blocks == 4
    assert cache.allocated(4) == [1, 2, 3, 4]
    assert cache.used_blocks == 4


def test_a_chain_loses_its_tail_first() -> None:
    cache = KvCache(4, 16, record_events=True)
    filled(cache, A, B, C)
    cache.allocated(1)
    assert cache.matched([A, B, C], 3) == [1, 2]
    assert cache.drained_events() == [Stored((A, B, C), None), Removed(C)]
    assert cache.drained_events() == []


def test_empty_blocks_are_reused_before_full_ones() -> None:
    cache = KvCache(6, 16)
    blocks = cache.allocated(3)
    cache.filled(blocks, [A], 0, 1)
    cache.released(blocks)
    assert cache.allocated(4) == [3, 2, 4, 5]
    assert A in cache


def test_a_hit_saves_a_block_from_reuse() -> None:
    cache = KvCache(3, 16)
    filled(cache, A)
    filled(cache, B)
    hit = cache.matched([A], 1)
    assert cache.idle(hit) == 1
    cache.pinned(hit)
    assert cache.idle(hit) == 0
    cache.allocated(1)
    assert A in cache
    assert B not in cache


def test_a_pinned_block_stays_until_its_last_user_leaves() -> None:
    cache = KvCache(2, 16)
    blocks = cache.allocated(1)
    cache.pinned(blocks)
    cache.released(blocks)
    assert cache.free_blocks == 0
    cache.released(blocks)
    assert cache.free_blocks == 1


def test_a_copy_outlives_the_other() -> None:
    cache = KvCache(3, 16, record_events=True)
    first, second = cache.allocated(2)
    cache.filled([first], [A], 0, 1)
    cache.filled([second], [A], 0, 1)
    assert cache.matched([A], 1) == [first]
    cache.released([first])
    cache.allocated(1)
    assert cache.matched([A], 1) == [second]
    assert cache.drained_events() == [Stored((A,), None), Stored((A,), None), Removed(A)]


def test_a_match_stops_at_the_first_gap_and_at_the_limit() -> None:
    cache = KvCache(9, 16)
    filled(cache, A, B)
    filled(cache, D)
    assert cache.matched([A, B, C, D], 4) == [1, 2]
    assert cache.matched([A, B], 1) == [1]
    assert cache.matched([C, A], 2) == []


def test_clearing_waits_for_the_last_user() -> None:
    cache = KvCache(3, 16, record_events=True)
    blocks = cache.allocated(1)
    cache.filled(blocks, [A], 0, 1)
    assert not cache.cleared()
    cache.released(blocks)
    assert cache.cleared()
    assert cache.cached_keys == 0
    assert cache.drained_events() == [Stored((A,), None), Cleared()]


def test_more_than_free_is_refused() -> None:
    with pytest.raises(CacheFull, match="5 blocks asked, 2 free"):
        KvCache(3, 16).allocated(5)


@pytest.mark.parametrize(("blocks", "block_tokens"), [(1, 16), (8, 0)])
def test_a_cache_has_a_size(blocks: int, block_tokens: int) -> None:
    with pytest.raises(ValueError, match="needs 2 blocks"):
        KvCache(blocks, block_tokens)


def freed(cache: KvCache, live: list[list[int]], which: int) -> None:
    if live:
        cache.released(live.pop(which % len(live)))


@given(
    st.lists(
        st.tuples(st.sampled_from(["fill", "leave", "hit", "clear"]), st.integers(0, 9), st.integers(1, 5)), max_size=60
    ),
    st.integers(2, 12),
)
def test_free_and_pinned_blocks_are_always_all_blocks(acts: list[tuple[str, int, int]], size: int) -> None:
    cache = KvCache(size, 16, record_events=True)
    live: list[list[int]] = []
    copies: Counter[bytes] = Counter()
    for act, which, length in acts:
        keys = [bytes([which, depth]) for depth in range(length)]
        if act == "fill" and length <= cache.free_blocks:
            live.append(cache.allocated(length))
            cache.filled(live[-1], keys, 0, length - which % 2)
        elif act == "hit":
            hit = cache.matched(keys, length)
            cache.pinned(hit)
            live.append(hit)
        elif act == "clear":
            assert cache.cleared() == (not any(live))
        else:
            freed(cache, live, which)
        for event in cache.drained_events():
            match event:
                case Stored(stored, _):
                    copies.update(stored)
                case Removed(key):
                    copies[key] -= 1
                case Cleared():
                    copies.clear()
        held = {block for blocks in live for block in blocks}
        assert 0 not in held
        assert cache.used_blocks == len(held)
        assert cache.free_blocks + len(held) == cache.usable_blocks == size - 1
        assert min(copies.values(), default=0) >= 0
        assert copies.total() <= cache.usable_blocks
        assert {key for key, count in copies.items() if count} == {key for key in copies if key in cache}
        assert sum(count > 0 for count in copies.values()) == cache.cached_keys
