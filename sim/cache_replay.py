"""Exact replays of prompts through caches alone: no engine, no time, only what was asked after what.

    tokens   hit tokens / prompt tokens: whole blocks, never the last token, as an engine reports it
    full     hit blocks / full blocks
    ids      hit ids / ids, where the id of a last block that is not full counts as well, as others publish it

The one rule: a hit is a leading run of blocks that one cache holds, and only prompts fill caches. Not here: what a
running engine pins, evicts and computes (`kv_cache`, `replica`).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.blocks import hittable_blocks
from sim.arrivals import Workload

Block = int | bytes
Prompt = tuple[int, Sequence[Block]]
"""Tokens, and the blocks in order; one more block than there are full ones stands for a last that is not full."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found, as sums."""

    requests: int
    prompt_tokens: int
    hit_tokens: int
    full_blocks: int
    hit_full_blocks: int
    ids: int
    hit_ids: int

    @property
    def hit_fraction(self) -> float | None:
        """Of prompt tokens; None without any."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def full_hit_fraction(self) -> float | None:
        return self.hit_full_blocks / self.full_blocks if self.full_blocks else None

    @property
    def id_hit_fraction(self) -> float | None:
        return self.hit_ids / self.ids if self.ids else None


class Cache(Protocol):
    """Serves one prompt after another."""

    def served(self, blocks: Sequence[Block]) -> int:
        """How many leading blocks were there; afterwards all are."""
        ...


class InfiniteCache:
    """Forgets nothing."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: set[Block] = set()

    def served(self, blocks: Sequence[Block]) -> int:
        hits = _leading(blocks, self._held)
        self._held.update(blocks[hits:])
        return hits


class LruCache:
    """Holds `capacity_blocks`; a prompt's last block is touched first, so that chains lose their tails before heads."""

    __slots__ = ("_capacity", "_held")

    def __init__(self, capacity_blocks: int) -> None:
        if capacity_blocks < 0:
            raise ValueError(f"a cache can't hold {capacity_blocks} blocks")
        self._capacity = capacity_blocks
        self._held: OrderedDict[Block, None] = OrderedDict()

    def served(self, blocks: Sequence[Block]) -> int:
        held = self._held
        hits = _leading(blocks, held)
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._capacity:
            held.popitem(last=False)
        return hits


def _leading(blocks: Sequence[Block], held: "set[Block] | OrderedDict[Block, None]") -> int:
    """Length of the leading run; caches here lose tails first, so what holds a block holds all before it."""
    low, high = 0, len(blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if blocks[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low


def replayed(prompts: Iterable[Prompt], block_tokens: int, caches: Sequence[Cache]) -> Replayed:
    """Serve prompt i by cache i modulo their number: one cache for all, or round robin."""
    count = prompt_tokens = hit_tokens = full = hit_full = ids = hit_ids = 0
    for tokens, blocks in prompts:
        hits = caches[count % len(caches)].served(blocks)
        count += 1
        prompt_tokens += tokens
        hit_tokens += min(hits, hittable_blocks(tokens, block_tokens)) * block_tokens
        full += tokens // block_tokens
        hit_full += min(hits, tokens // block_tokens)
        ids += len(blocks)
        hit_ids += hits
    return Replayed(count, prompt_tokens, hit_tokens, full, hit_full, ids, hit_ids)


def prompts_of(workload: Workload) -> Iterator[Prompt]:
    """The prompts of a workload without its answers; blocks that are not full are not known there."""
    for arrival in workload.arrivals:
        yield arrival.prompt_tokens, arrival.keys[: arrival.prompt_tokens // workload.block_tokens]
