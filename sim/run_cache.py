"""The block pool of one replica, kept as runs of blocks instead of single ones: `kv_cache` for the simulator's speed.

The one rule: what it holds, finds, evicts and tells is exactly what `kv_cache` would, in the same order. That works
because prompts are pinned from the root: of a run somebody pins a beginning, what nobody pins is given back last block
first, and so the free queue is made of stretches of runs. A younger copy of a key stands apart, as a run of one block,
until the older one goes. Keys must be chained: equal keys have equal keys before them. Not here: who gets what.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from sim.cache_events import Cleared, Event, Removed, Stored
from sim.errors import CacheFull
from sim.runs import Hold, Run, Stretch


class RunCache:
    """`blocks` is the engine's own count (`num_gpu_blocks`): block 0 never holds anything."""

    def __init__(self, blocks: int, block_tokens: int, *, record_events: bool = False) -> None:
        if blocks < 2 or block_tokens < 1:
            raise ValueError(f"a cache needs 2 blocks of 1 token at least, not {blocks} of {block_tokens}")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.usable_blocks = blocks - 1
        self.free_blocks = blocks - 1
        self._distinct = 0
        self._followed: dict[Hold, None] = {}
        self.watched: dict[Hold, None] = {}
        """Those that decode and could meet each other's keys: they must be told of one by one, in their order."""
        self._nameless = blocks - 1  # of the free ones, those at the head of the queue that hold nothing
        self._queue: OrderedDict[Stretch, None] = OrderedDict()
        self._runs: dict[bytes, Run] = {}  # by first key, those with the oldest copies
        self._copies: dict[bytes, list[Run]] = {}  # the younger ones, in their order
        self._events: list[Event] | None = [] if record_events else None

    @property
    def cached_keys(self) -> int:
        """Distinct keys that could be hit now."""
        self._catch_up()
        return self._distinct

    @property
    def used_blocks(self) -> int:
        """Pinned blocks; those that are only cached count as free."""
        return self.usable_blocks - self.free_blocks

    @property
    def records_events(self) -> bool:
        return self._events is not None

    def keys(self) -> Iterator[bytes]:
        """Every key that could be hit now, once."""
        for run in self._runs.values():
            yield from run.keys[run.start : run.end]

    def matched_blocks(self, keys: Sequence[bytes], limit: int) -> int:
        """Length of the longest run of `keys` from the root that is here, at most `limit`."""
        path = self.path(keys, limit)
        return path[-1][1] if path else 0

    def path(self, keys: Sequence[bytes], limit: int) -> list[tuple[Run, int]]:
        """The runs that hold the oldest copies of `keys` from the root on, each with the place where it is left."""
        found = []
        limit = min(limit, len(keys))
        place = 0
        while place < limit and (run := self._runs.get(keys[place])) is not None:
            there = run.keys
            if run.owner is not None and self._meets(run.owner, run, keys) and run.end == place:
                break
            stop = min(run.end, limit)
            if there[stop - 1] != keys[stop - 1]:
                equal, stop = place, stop - 1
                while stop - equal > 1:
                    middle = (equal + stop) >> 1
                    if there[middle] == keys[middle]:
                        equal = middle
                    else:
                        stop = middle
            found.append((run, stop))
            place = stop
        return found

    def idle(self, path: Iterable[tuple[Run, int]]) -> int:
        """How many blocks of a path nobody pins: pinning them takes as many from the free queue."""
        return sum(stop - run.top for run, stop in path if stop > run.top)

    def pinned(self, hold: Hold, path: list[tuple[Run, int]]) -> None:
        """A request uses these blocks from now on."""
        hold.path = path
        hold.filled = path[-1][1] if path else 0
        for run, stop in path:
            run.pins[stop] = run.pins.get(stop, 0) + 1
            if stop > run.top:
                self.free_blocks -= stop - run.top
                self._reclaimed(run, stop)

    def _reclaimed(self, run: Run, stop: int) -> None:
        run.top = stop
        stretches = run.stretches
        while stretches and stretches[-1].low < stop:
            stretch = stretches[-1]
            if stretch.high > stop:
                stretch.low = stop
                return
            del self._queue[stretch]
            stretches.pop()

    def allocated(self, count: int) -> None:
        """Pin `count` blocks from the head of the free queue; what they held is forgotten."""
        if count > self.free_blocks:
            raise CacheFull(f"{count} blocks asked, {self.free_blocks} free: preempt or wait before allocating")
        self.free_blocks -= count
        if count <= self._nameless:
            self._nameless -= count
            return
        count -= self._nameless
        self._nameless = 0
        while count:
            stretch = next(iter(self._queue))
            run = stretch.run
            stop = max(stretch.low, stretch.high - count)
            count -= stretch.high - stop
            self._forget(run, stop)
            stretch.high = run.end = stop
            if stop == stretch.low:
                del self._queue[stretch], run.stretches[0]

    def _forget(self, run: Run, stop: int) -> None:
        """The blocks of a run from `stop` on are somebody else's now."""
        if self._events is not None:
            self._events += [Removed(run.keys[place]) for place in range(run.end - 1, stop - 1, -1)]
        if not run.oldest:
            self._copy_forgotten(run)
            return
        self._distinct -= run.end - stop
        if stop == run.start:
            del self._runs[run.keys[stop]]
        if run.copied:
            for key in run.keys[stop : run.end]:
                if key in self._copies:
                    self._promoted(key)

    def _copy_forgotten(self, run: Run) -> None:
        key = run.keys[run.start]
        others = self._copies[key]
        others.remove(run)
        if not others:
            del self._copies[key]

    def _promoted(self, key: bytes) -> None:
        """The oldest copy of a key is gone: a match finds the next one."""
        others = self._copies[key]
        run = others.pop(0)
        run.oldest = True
        run.copied = bool(others)
        if not others:
            del self._copies[key]
        self._runs[key] = run
        self._distinct += 1

    def filled(self, hold: Hold, stop: int, *, unheld: bool = False) -> None:
        """Blocks of a request up to `stop` hold full blocks now and can be hit.

        `unheld` says that the first of them is known to have no other copy.
        """
        keys, place = hold.keys, hold.filled
        if self._events is not None and stop > place:
            self._events.append(Stored(tuple(keys[place:stop]), keys[place - 1] if place else None))
        while place < stop:
            run = hold.growing
            other = None if unheld else self._runs.get(keys[place]) if run is not None else self._holder(keys, place)
            if other is None or other is run:  # then nobody holds what comes after it either
                self._grown(hold, place, stop)
                break
            self._stop_growing(hold)
            copy = Run(keys, place, place + 1, oldest=False)
            copy.pins[place + 1] = 1
            self._copies.setdefault(keys[place], []).append(copy)
            other.copied = True
            hold.path.append((copy, place + 1))
            place += 1
        hold.filled = stop

    def _grown(self, hold: Hold, place: int, stop: int) -> None:
        run = hold.growing
        if run is None:
            self._opened(hold, place, stop)
        else:
            run.end = run.top = stop
        self._distinct += stop - place

    def _opened(self, hold: Hold, place: int, stop: int) -> None:
        run = hold.growing = self._runs[hold.keys[place]] = Run(hold.keys, place, stop, oldest=True)
        run.owner = hold
        hold.path.append((run, stop))

    def _holder(self, keys: Sequence[bytes], place: int) -> Run | None:
        path = self.path(keys, place + 1)
        return path[-1][0] if path and path[-1][1] > place else None

    def _stop_growing(self, hold: Hold) -> None:
        run = hold.growing
        if run is not None:
            hold.growing = run.owner = None
            run.pins[run.end] = run.pins.get(run.end, 0) + 1
            hold.path[-1] = (run, run.end)

    # -- requests that decode ------------------------------------------------------------------------------------------

    def follow(self, hold: Hold) -> None:
        """From now on a request fills one block after the other, as `reached` tells.

        As long as nobody else has a key that it will fill, it needs no telling; else it is `watched`.
        """
        keys, place = hold.keys, hold.filled
        if place >= len(keys):
            return
        alone = len(self.watched)
        held = self._runs.get(keys[place]) if hold.growing is not None else self._holder(keys, place)
        if held is not None and held.owner is not None and held.owner.followed:
            self._watch(held.owner)
        meets = any(place < len(other.keys) and other.keys[place] == keys[place] for other in self.watched)
        if held is not None or meets or alone < len(self.watched) or self._events is not None:
            self.watched[hold] = None
            return
        if hold.growing is None:
            self._opened(hold, place, place)
        hold.followed = True
        self._followed[hold] = None

    def _meets(self, owner: Hold, run: Run, keys: Sequence[bytes]) -> bool:
        """Somebody with these keys comes by a run that still grows: it grows up to now; do they go on together?"""
        if owner.followed:
            self._reach(owner)
            end = run.end
            if end < len(keys) and end < len(run.keys) and keys[end] == run.keys[end]:
                self._watch(owner)
        return True

    def _reach(self, hold: Hold) -> None:
        place, stop = hold.filled, hold.reached()
        run = hold.growing
        if stop > place and run is not None:
            run.end = run.top = hold.filled = stop
            self._distinct += stop - place

    def _watch(self, hold: Hold) -> None:
        self._unfollow(hold)
        self.watched[hold] = None

    def _unfollow(self, hold: Hold) -> None:
        self._reach(hold)
        hold.followed = False
        del self._followed[hold]
        run = hold.growing
        if run is not None and run.end == run.start:
            del self._runs[run.keys[run.start]]
            hold.path.pop()
            hold.growing = None

    def _catch_up(self) -> None:
        for hold in self._followed:
            self._reach(hold)

    def released(self, hold: Hold, nameless: int) -> None:
        """A request lets go of its blocks, `nameless` of them without a key."""
        if hold.followed:
            self._unfollow(hold)
        else:
            self.watched.pop(hold, None)
        self._nameless += nameless
        freed = nameless
        for run, stop in reversed(hold.path):
            if run is hold.growing:
                run.owner = None
            else:
                count = run.pins[stop] - 1
                if count:
                    run.pins[stop] = count
                    continue
                del run.pins[stop]
                if run.owner is not None or stop < run.top:
                    continue
            top = max(run.pins) if run.pins else run.start
            if top < run.top:
                stretch = Stretch(run, top, run.top)
                freed += run.top - top
                run.top = top
                run.stretches.append(stretch)
                self._queue[stretch] = None
        self.free_blocks += freed
        hold.path = []
        hold.growing = None
        hold.filled = 0

    def cleared(self) -> bool:
        """Forget everything; False, and nothing done, while a request holds a block."""
        if self.used_blocks:
            return False
        self._runs.clear()
        self._copies.clear()
        self._queue.clear()
        self._nameless = self.free_blocks
        self._distinct = 0
        if self._events is not None:
            self._events.append(Cleared())
        return True

    def drained_events(self) -> list[Event]:
        """Events since the last call, in order; none unless the cache records them."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events
