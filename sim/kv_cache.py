"""The block pool of one replica, with vLLM's order of reuse (0.32, `v1/core/block_pool.py`).

The one rule: a block is pinned by the requests that use it, and a block that nobody pins waits in the free queue, still
hittable, until the queue's head reaches it. Blocks that hold no full block go to the front when freed, the others to
the end, last block first, so that a chain loses its tail before its head. Two copies of one key may exist; each has its
own Stored and Removed event. Who gets which block and when is the replica's business.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from sim.cache_events import Cleared, Event, Removed, Stored
from sim.errors import CacheFull


class KvCache:
    """`blocks` is the engine's own count (`num_gpu_blocks`): block 0 never holds anything."""

    def __init__(self, blocks: int, block_tokens: int, *, record_events: bool = False) -> None:
        if blocks < 2 or block_tokens < 1:
            raise ValueError(f"a cache needs 2 blocks of 1 token at least, not {blocks} of {block_tokens}")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self._pins = [0] * blocks
        self._key_of: list[bytes | None] = [None] * blocks
        self._copies: dict[bytes, dict[int, None]] = {}
        self._events: list[Event] | None = [] if record_events else None

    @property
    def usable_blocks(self) -> int:
        return self.blocks - 1

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Pinned blocks; those that are only cached count as free."""
        return self.usable_blocks - len(self._free)

    @property
    def cached_keys(self) -> int:
        """Distinct keys that could be hit now."""
        return len(self._copies)

    def __contains__(self, key: object) -> bool:
        return key in self._copies

    def keys(self) -> Iterable[bytes]:
        """Every key that could be hit now, once."""
        return self._copies.keys()

    def matched(self, keys: Sequence[bytes], limit: int) -> list[int]:
        """Blocks of the longest run of `keys` from the root that is here, at most `limit`; the oldest copy of each."""
        found = []
        for key in keys[:limit]:
            copies = self._copies.get(key)
            if copies is None:
                break
            found.append(next(iter(copies)))
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these nobody pins: pinning them takes as many from the free queue."""
        return sum(not self._pins[block] for block in blocks)

    def pinned(self, blocks: Sequence[int]) -> None:
        """A request uses these blocks from now on."""
        for block in blocks:
            if not self._pins[block]:
                del self._free[block]
            self._pins[block] += 1

    def allocated(self, count: int) -> list[int]:
        """Pin `count` blocks from the head of the free queue; what they held is forgotten."""
        if count > len(self._free):
            raise CacheFull(f"{count} blocks asked, {len(self._free)} free: preempt or wait before allocating")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._forget(block)
            self._pins[block] = 1
        return taken

    def filled(self, blocks: Sequence[int], keys: Sequence[bytes], start: int, stop: int) -> None:
        """Blocks `start:stop` of a request hold full blocks now and can be hit."""
        if stop <= start:
            return
        for block, key in zip(blocks[start:stop], keys[start:stop], strict=True):
            self._key_of[block] = key
            self._copies.setdefault(key, {})[block] = None
        if self._events is not None:
            self._events.append(Stored(tuple(keys[start:stop]), keys[start - 1] if start else None))

    def released(self, blocks: Sequence[int]) -> None:
        """A request lets go of its blocks, given in chain order."""
        nameless = []
        for block in reversed(blocks):
            self._pins[block] -= 1
            if self._pins[block]:
                continue
            if self._key_of[block] is None:
                nameless.append(block)
            else:
                self._free[block] = None
        for block in reversed(nameless):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def cleared(self) -> bool:
        """Forget everything; False, and nothing done, while a request holds a block."""
        if self.used_blocks:
            return False
        self._copies.clear()
        self._key_of = [None] * self.blocks
        if self._events is not None:
            self._events.append(Cleared())
        return True

    def drained_events(self) -> list[Event]:
        """Events since the last call, in order; none unless the cache records them."""
        if self._events is None:
            return []
        events, self._events = self._events, []
        return events

    def _forget(self, block: int) -> None:
        key = self._key_of[block]
        if key is None:
            return
        self._key_of[block] = None
        copies = self._copies[key]
        del copies[block]
        if not copies:
            del self._copies[key]
        if self._events is not None:
            self._events.append(Removed(key))
