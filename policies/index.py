"""Which replica probably holds which prefix. Facts go in; leading blocks per replica come out.

    belief    what was recorded: a radix tree of runs with one bounded LRU per replica (`policies.tree`)
    expected  believed only because a request is on its way there: gone again if it fails before it computed anything
    copies    what a replica told by events (`policies.copies`). Where there are any, they and what is expected count,
              less what has to make room for that by the belief; else it is the memory of which prompts continue which

Look-ups never touch recency. Every method is O(runs on the path), or O(runs given up). Not here: time, load, and how
keys are made.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from policies.blocks import KEY_BYTES
from policies.copies import Copies
from policies.errors import FleetError
from policies.runs import Run
from policies.tree import Holder, Path, Tree

SHARED_AFTER: Final = 8
"""Blocks followed by at least this many different continuations belong to everybody (a system prompt, tools)."""

COPIES_FOR_SHARE: Final = 1.5
"""A shared head deserves this many copies per replica times its share of all prompts. Measured on lesson, tenant and
Zipf traffic: 1 to 2 are equally good; with ever more, copies of many heads crowd each other out."""


class Found(NamedTuple):
    """What the index knows of one prompt."""

    matched: dict[str, int]
    """Leading blocks that each replica probably holds; replicas that hold none are absent."""
    shared_blocks: int
    """Leading blocks that many different prompts continue."""
    scarce_blocks: int
    """Those of them that have fewer copies than their share of all prompts deserves."""


class PrefixIndex:
    """What the router believes of its replicas' caches."""

    def __init__(self, *, unknown_capacity_blocks: int = 50_000) -> None:
        """`unknown_capacity_blocks` bounds a replica that has not told its size."""
        self._unknown_capacity_blocks = unknown_capacity_blocks
        self._tree = Tree()
        self._holders: dict[str, Holder] = {}
        self._telling: list[Holder] = []
        self._known: tuple[Sequence[bytes], Path, int, Found] | None = None
        """The last look-up, as long as nothing has changed: what is sent was looked up right before."""

    def __repr__(self) -> str:
        held = sum(map(self.held_blocks, self._holders))
        return f"<PrefixIndex {len(self._holders)} replicas, {self.runs} runs, {held} blocks held>"

    # -- membership ------------------------------------------------------------------------------------------------

    def joined(self, name: str, capacity_blocks: int | None = None) -> None:
        if name in self._holders:
            raise FleetError(f"replica {name!r} joined the index twice")
        self._known = None
        self._holders[name] = self._tree.joined(name, capacity_blocks)

    def left(self, name: str) -> None:
        holder = self._changed(name)
        self._tree.left(holder)
        del self._holders[name]
        self._telling = [other for other in self._telling if other is not holder]

    def resized(self, name: str, capacity_blocks: int | None) -> None:
        holder = self._changed(name)
        holder.capacity_blocks = capacity_blocks
        self._tree.evict(holder, self._limit(holder))

    def cleared(self, name: str) -> None:
        """The replica's cache is empty: it restarted, or was reset."""
        holder = self._changed(name)
        self._tree.cleared(holder)
        if holder.copies is not None:
            holder.copies.cleared()

    def lost(self, name: str, firsts: Collection[bytes]) -> None:
        """What the replica was believed to hold of prompts that begin with one of these blocks is gone."""
        holder = self._changed(name)
        gone: dict[Run, None] = {}
        for run in reversed(holder.depths):  # youngest first: parents before children
            if run.first in firsts if run.parent is None else run.parent in gone:
                gone[run] = None
        for run in reversed(gone):
            self._tree.shrink(holder, run, 0)

    # -- belief ----------------------------------------------------------------------------------------------------

    def recorded(self, name: str, blocks: Sequence[bytes], *, expected: bool = False) -> None:
        """The replica now holds this whole prefix, most recently used.

        `expected`: it has not computed what is new to it yet; tell `computed` or `withdrawn` when that is known.
        """
        if not blocks:
            return
        path, covered = self._path(blocks)
        telling = expected and self.copies(name) is not None
        there = self.matched(blocks).get(name, 0) if telling else 0
        holder = self._changed(name)
        if covered < len(blocks):
            path = self._tree.grown(holder, path, covered, blocks)
        if telling:
            holder.awaits(path, there)
        depths = holder.depths
        for run, depth in reversed(path):
            before = depths.get(run, 0)
            if depth > before:
                holder.held_blocks += depth - before
                run.holders |= holder.bit
                depths[run] = depth
                if expected:
                    holder.expected.setdefault(run, before)
            depths.move_to_end(run)
        if holder.expected and not expected and holder.copies is None:
            holder.settle(path)
        self._tree.evict(holder, self._limit(holder))

    def filled(self, name: str, blocks: Sequence[bytes], nameless: int, given_back: int) -> None:
        """The replica holds so many blocks more that continue this prefix, and which nobody can ask for by name.

        They go before it does, as the tail of its chain; fewer than 0 are missing at its end. It took others meanwhile,
        which are `given_back` empty.
        """
        holder = self._changed(name)
        if nameless > 0:
            self._tree.filled(holder, nameless)
            self.recorded(name, blocks)
        elif nameless < 0 and (path := self._tree.path(blocks)[0]):
            last, depth = path[-1]
            if not last.branches and holder.depths.get(last) == depth:
                self._tree.shrink(holder, last, max(0, depth + nameless))
        self._tree.evict(holder, max(0, self._limit(holder) - given_back))

    def computed(self, name: str, blocks: Sequence[bytes]) -> None:
        """What was expected of this prefix has come true."""
        holder = self._changed(name)
        if holder.expected:
            holder.settle(self._tree.path(blocks)[0])

    def landing(self, name: str, prompts: int) -> None:
        """So many prompts are computed there, and not told of yet."""
        self._changed(name).landing = prompts

    def withdrawn(self, name: str, blocks: Sequence[bytes], kept: int) -> None:
        """What was expected of this prefix beyond its first `kept` blocks will not come; what is computed stays."""
        holder = self._changed(name)
        path, _ = self._tree.path(blocks)
        start = sum(depth for _, depth in path)
        for run, depth in reversed(path):
            start -= depth
            held = holder.depths.get(run, 0)
            if not held:
                continue  # evicted here, but still known from another replica
            wanted = max(holder.expected.get(run, held), kept - start)
            if wanted >= held or held > depth or holder.holds_beyond(run):
                return
            self._tree.shrink(holder, run, wanted)
            if wanted:
                return

    def missed(self, name: str, blocks: Sequence[bytes], delivered: int) -> None:
        """The replica had only the first `delivered` blocks of this prompt, which it is believed to hold now.

        An engine gives up the tail of a chain before its head: what continued the lost part is lost too, if it was not
        used since the prompt was sent, the rest of the prompt's last run as well. The prompt itself was computed anew.
        What goes on right behind it has no age apart from it: all but what is expected counts as not used since.
        """
        holder = self._changed(name)
        path, _ = self._tree.path(blocks)
        lost, end = set(), 0
        for run, depth in path:
            end += depth
            if end > delivered:
                lost.add(run)
        if not lost:
            return
        last, depth = path[-1]
        goes_on = holder.depths.get(last, 0) > depth and last not in holder.expected
        if not goes_on and all(run.branches <= (run is not last) for run in lost):
            return  # nothing else continues it
        own = {run for run, _ in path}
        stale, needed = [], set()
        for run in holder.depths:  # oldest first, so children before parents
            if run in own:
                break
            ancestor = run.parent
            while ancestor is not None and ancestor not in own:
                ancestor = ancestor.parent
            if ancestor not in lost:
                continue
            if run in holder.expected or run in needed:
                needed.add(run.parent)
            else:
                stale.append(run)
        for run in stale:
            self._tree.shrink(holder, run, 0)
        if goes_on and last not in needed:
            self._tree.shrink(holder, last, depth)

    def gave_up(self, name: str, block: bytes) -> bool:
        """Whether the replica's belief ended before this block because it had no room for more."""
        return block in self._holder(name).given_up

    # -- events ----------------------------------------------------------------------------------------------------

    def stored(self, name: str, keys: Sequence[bytes], parent: bytes | None) -> None:
        """The replica told that it stored these blocks, which continue `parent`. From now on its word counts."""
        self.telling(name).stored(keys, parent)

    def telling(self, name: str) -> Copies:
        """What the replica told by events, begun if it told none yet."""
        holder = self._changed(name)
        if holder.copies is None:
            holder.copies = Copies()
            self._telling.append(holder)
        return holder.copies

    def removed(self, name: str, keys: Iterable[bytes]) -> None:
        """The replica told that it gave up one copy of each of these blocks."""
        copies = self._changed(name).copies
        if copies is not None:
            copies.removed(keys)

    def untold(self, name: str) -> None:
        """Forget what the replica told by events; what was recorded counts again, so it does not start cold."""
        holder = self._changed(name)
        holder.copies = None
        self._telling = [other for other in self._telling if other is not holder]

    def copies(self, name: str) -> Copies | None:
        """What the replica told by events; None while it told none."""
        return self._holder(name).copies

    # -- look-ups --------------------------------------------------------------------------------------------------

    def matched(self, blocks: Sequence[bytes]) -> dict[str, int]:
        """Leading blocks of a prompt that each replica probably holds; replicas that hold none are absent."""
        return self.found(blocks).matched

    def shared_blocks(self, blocks: Sequence[bytes]) -> int:
        """How many leading blocks of a prompt have been followed by many different continuations."""
        return self.found(blocks).shared_blocks

    def found(self, blocks: Sequence[bytes]) -> Found:
        """All that is known of a prompt, by one walk."""
        known = self._known
        if known is not None and known[0] is blocks:
            return known[3]
        path, covered = self._tree.path(blocks)
        found = Found(self._matched(path, blocks), *self._common(path))
        self._known = blocks, path, covered, found
        return found

    def held_blocks(self, name: str) -> int:
        holder = self._holder(name)
        return holder.held_blocks if holder.copies is None else len(holder.copies)

    @property
    def runs(self) -> int:
        """Runs in the tree: a measure of its memory."""
        return len(self._tree.by_first)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _holder(self, name: str) -> Holder:
        try:
            return self._holders[name]
        except KeyError:
            raise FleetError(f"the index knows no replica {name!r}") from None

    def _changed(self, name: str) -> Holder:
        self._known = None
        return self._holder(name)

    def _path(self, blocks: Sequence[bytes]) -> tuple[Path, int]:
        known = self._known
        return (known[1], known[2]) if known is not None and known[0] is blocks else self._tree.path(blocks)

    def _limit(self, holder: Holder) -> int:
        return self._unknown_capacity_blocks if holder.capacity_blocks is None else holder.capacity_blocks

    def _matched(self, path: Path, blocks: Sequence[bytes]) -> dict[str, int]:
        found: dict[str, int] = {}
        by_bit = self._tree.by_bit
        seen = 0
        start = sum([depth for _, depth in path])
        for run, depth in reversed(path):
            start -= depth
            mask = run.holders & ~seen
            seen |= mask
            while mask:
                bit = mask & -mask
                mask ^= bit
                holder = by_bit[bit]
                reach = min(depth, holder.depths[run])
                if holder.copies is None or reach > holder.expected.get(run, reach):
                    found[holder.name] = start + reach
        for holder in self._telling:
            told = holder.copies.matched(blocks) if holder.copies is not None else 0
            if told and holder.landing:
                told = holder.making_room(path, blocks, told)
            if told > found.get(holder.name, 0):
                found[holder.name] = told
        return found

    def _common(self, path: Path) -> tuple[int, int]:
        """Leading blocks that are shared, and that are scarce.

        Blocks that nobody has computed yet are neither: a burst of new prompts with one head must stay together. A
        run that continues a head stands for one prompt, so a head's share of all runs is its share of the prompts.
        """
        start = shared = scarce = 0
        for run, depth in path:
            start += depth
            if run.branches >= SHARED_AFTER and depth * KEY_BYTES == len(run.keys) and self._tree.is_computed(run):
                shared = start
                deserved = min(1.0, COPIES_FOR_SHARE * run.branches / self.runs) * len(self._holders)
                if run.holders.bit_count() < deserved:
                    scarce = start
        return shared, scarce
