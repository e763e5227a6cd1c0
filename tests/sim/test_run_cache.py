"""Runs of blocks are found, evicted and told of exactly as single blocks are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cache_events import Removed, Stored
from sim.errors import CacheFull
from sim.kv_cache import KvCache
from sim.run_cache import RunCache
from sim.runs import Hold
from tests.sim.twins import chained

ABC = chained("abc")


def filled(cache: RunCache, keys: tuple[bytes, ...]) -> Hold:
    """A chain of full blocks that somebody holds."""
    hold = Hold(keys)
    cache.allocated(len(keys))
    cache.filled(hold, len(keys))
    return hold


def hit(cache: RunCache, keys: tuple[bytes, ...]) -> Hold:
    hold = Hold(keys)
    cache.pinned(hold, cache.path(keys, len(keys)))
    return hold


def test_a_chain_loses_its_tail_first() -> None:
    cache = RunCache(4, 16, record_events=True)
    cache.released(filled(cache, ABC), 0)
    cache.allocated(1)
    assert cache.matched_blocks(ABC, 3) == 2
    assert cache.drained_events() == [Stored(ABC, None), Removed(ABC[2])]
    assert cache.drained_events() == []


def test_what_a_hit_does_not_take_keeps_its_place() -> None:
    cache = RunCache(6, 16)
    cache.released(filled(cache, ABC), 0)
    other = chained("xy")
    cache.released(filled(cache, other), 0)
    cache.released(hit(cache, ABC[:1]), 0)
    cache.allocated(3)
    assert cache.matched_blocks(ABC, 3) == 1
    assert cache.matched_blocks(other, 2) == 1
    assert list(cache.keys()) == [ABC[0], other[0]]


def test_a_copy_is_found_when_the_older_one_is_gone() -> None:
    cache = RunCache(5, 16, record_events=True)
    first, second = filled(cache, ABC[:2]), filled(cache, ABC[:2])
    assert cache.cached_keys == 2
    cache.released(first, 0)
    cache.allocated(2)
    assert cache.matched_blocks(ABC, 3) == 2
    assert cache.drained_events()[2:] == [Removed(ABC[1]), Removed(ABC[0])]
    cache.released(second, 0)
    cache.allocated(1)
    assert cache.matched_blocks(ABC, 3) == 1


def test_clearing_waits_for_the_last_user() -> None:
    cache = RunCache(4, 16)
    hold = filled(cache, ABC[:1])
    assert not cache.cleared()
    cache.released(hold, 0)
    assert cache.cleared()
    assert (cache.cached_keys, cache.free_blocks) == (0, 3)


def test_more_than_free_is_refused() -> None:
    with pytest.raises(CacheFull, match="5 blocks asked, 2 free"):
        RunCache(3, 16).allocated(5)


@pytest.mark.parametrize(("blocks", "block_tokens"), [(1, 16), (8, 0)])
def test_a_cache_has_a_size(blocks: int, block_tokens: int) -> None:
    with pytest.raises(ValueError, match="needs 2 blocks"):
        RunCache(blocks, block_tokens)


class Twins:
    """One request after the other, in both caches."""

    def __init__(self, size: int) -> None:
        self.plain = KvCache(size, 16, record_events=True)
        self.runs = RunCache(size, 16, record_events=True)
        self.live: list[tuple[list[int], Hold, int]] = []

    def served(self, keys: tuple[bytes, ...], limit: int, nameless: int) -> None:
        """A request hits what it may, computes the rest, and has `nameless` blocks that are not full."""
        found = self.plain.matched(keys, limit)
        path = self.runs.path(keys, limit)
        assert self.runs.idle(path) == self.plain.idle(found)
        need = len(keys) - len(found) + nameless
        if need + self.plain.idle(found) > self.plain.free_blocks:
            return
        self.plain.pinned(found)
        blocks = found + self.plain.allocated(need)
        self.plain.filled(blocks, keys, len(found), len(keys))
        hold = Hold(keys)
        self.runs.pinned(hold, path)
        self.runs.allocated(need)
        self.runs.filled(hold, len(keys))
        self.live.append((blocks, hold, nameless))

    def left(self, which: int) -> None:
        if self.live:
            blocks, hold, nameless = self.live.pop(which % len(self.live))
            self.plain.released(blocks)
            self.runs.released(hold, nameless)


@given(
    st.lists(st.tuples(st.text("ab", max_size=7), st.integers(0, 8), st.integers(0, 2), st.booleans()), max_size=50),
    st.integers(2, 24),
)
def test_it_equals_the_cache_of_single_blocks(acts: list[tuple[str, int, int, bool]], size: int) -> None:
    twins = Twins(size)
    for letters, limit, nameless, leaves in acts:
        twins.served(chained(letters), limit, nameless)
        if leaves:
            twins.left(limit)
        assert twins.runs.drained_events() == twins.plain.drained_events()
        assert twins.runs.free_blocks == twins.plain.free_blocks
        assert twins.runs.cached_keys == twins.plain.cached_keys
        assert set(twins.runs.keys()) == set(twins.plain.keys())
