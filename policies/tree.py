"""The radix tree of block runs under the index, and for each replica what it holds of it, oldest first.

The one rule: a holder of a run holds all of the run's ancestors, and every ancestor is younger than the run. So the
oldest run of a holder is always a leaf for it, and evicting from the old end gives up tails before heads.
Not here: what the facts mean (`policies.index`).
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from policies.agreement import common_blocks
from policies.blocks import KEY_BYTES
from policies.copies import Copies
from policies.keys import packed_keys
from policies.runs import Run

_GIVEN_UP: Final = 4096

Path = list[tuple[Run, int]]
"""The runs along a prompt, each with how many of its blocks the prompt covers."""


@dataclass(slots=True, eq=False)
class Holder:
    """A replica: the first `depths[run]` blocks of each of its runs."""

    name: str
    bit: int
    capacity_blocks: int | None
    held_blocks: int = 0
    depths: "OrderedDict[Run, int]" = field(default_factory=OrderedDict)
    expected: dict[Run, int] = field(default_factory=dict)
    """Runs whose end is only expected, with how many of their leading blocks are computed: fewer than are held."""
    copies: Copies | None = None
    """What it told by events; None while it told none."""
    landing: int = 0
    """Prompts it has computed and not told of yet."""
    given_up: "OrderedDict[bytes, None]" = field(default_factory=OrderedDict)
    """The first block of each end that was evicted for lack of room, the latest ones."""

    def gives_up(self, block: bytes) -> None:
        self.given_up[block] = None
        if len(self.given_up) > _GIVEN_UP:
            self.given_up.popitem(last=False)

    def awaits(self, path: Path, there: int) -> None:
        """Of what is held along the path only the first blocks are there: the rest was evicted, and comes again."""
        start = 0
        for run, depth in path:
            if start + depth > there and self.depths.get(run) == depth:
                self.expected.setdefault(run, max(0, there - start))
            start += depth

    def making_room(self, path: Path, blocks: Sequence[bytes], told: int) -> int:
        """Of so many leading blocks that it told of, those left once what is expected is there.

        It tells of the blocks it gives up when it tells of those that need their room: until then it has fewer, by as
        many as are expected at most.
        """
        left = 0
        for run, depth in path:
            held = min(depth, self.depths.get(run, 0))
            left += held
            if held < depth:
                break
        if left >= told or blocks[left] not in self.given_up:
            return told
        coming = sum([self.depths[run] - computed for run, computed in self.expected.items()])
        return max(left, told - coming)

    def settle(self, path: Path) -> None:
        """What is covered by the path is computed now."""
        for run, depth in path:
            computed = self.expected.get(run)
            if computed is None:
                continue
            if depth >= self.depths[run]:
                del self.expected[run]
            elif depth > computed:
                self.expected[run] = depth

    def holds_beyond(self, run: Run) -> bool:
        """Whether it holds a run that continues this one. Linear in its runs; false at once for a leaf of the tree."""
        return run.branches > 0 and any(child.parent is run for child in self.depths)


class Tree:
    """Runs found by their first key, each with a bit mask of its holders; a run nobody holds is gone."""

    def __init__(self) -> None:
        self.by_first: dict[bytes, Run] = {}
        self.by_bit: dict[int, Holder] = {}

    def joined(self, name: str, capacity_blocks: int | None) -> Holder:
        bit = 1
        while bit in self.by_bit:
            bit <<= 1
        holder = self.by_bit[bit] = Holder(name, bit, capacity_blocks)
        return holder

    def left(self, holder: Holder) -> None:
        self.cleared(holder)
        del self.by_bit[holder.bit]

    def path(self, blocks: Sequence[bytes]) -> tuple[Path, int]:
        """The runs along a prompt, and how many of its blocks they know."""
        path = []
        start = 0
        total = len(blocks)
        while start < total:
            run = self.by_first.get(blocks[start])
            if run is None:
                break
            common = common_blocks(run.keys, blocks, start)
            path.append((run, common))
            start += common
            if common * KEY_BYTES < len(run.keys):
                break
        return path, start

    def holders(self, mask: int) -> Iterator[Holder]:
        while mask:
            bit = mask & -mask
            mask ^= bit
            yield self.by_bit[bit]

    def is_computed(self, run: Run) -> bool:
        """Whether some holder has computed all it holds of a run."""
        return any(run not in holder.expected for holder in self.holders(run.holders))

    def grown(self, holder: Holder, path: Path, covered: int, blocks: Sequence[bytes]) -> Path:
        """Add the unknown rest of a prompt; return the path that now covers all of it. The holder must take it."""
        rest = packed_keys(blocks, covered)
        parent = None
        if path:
            parent, depth = path[-1]
            if depth < len(parent):
                parent = self._split(parent, depth)
                path[-1] = (parent, depth)
            elif not parent.branches and parent.holders == holder.bit:
                # A conversation's next turn: nobody else knows this leaf, so it grows in place.
                parent.keys += rest
                path[-1] = (parent, len(parent))
                return path
            parent.branches += 1
        run = self.by_first[rest[:KEY_BYTES]] = Run(rest, parent, 0)
        path.append((run, len(run)))
        return path

    def filled(self, holder: Holder, blocks: int) -> None:
        """A holder has blocks whose keys are unknown: a run without keys, in no prompt, only as old as they are."""
        holder.depths[Run(b"", None, holder.bit)] = blocks
        holder.held_blocks += blocks

    def evict(self, holder: Holder, limit_blocks: int) -> None:
        """Give up the oldest blocks beyond a limit."""
        while holder.held_blocks > limit_blocks:
            run, depth = next(iter(holder.depths.items()))
            kept = max(0, depth - (holder.held_blocks - limit_blocks))
            if run.keys:
                holder.gives_up(run.keys[kept * KEY_BYTES : (kept + 1) * KEY_BYTES])
            self.shrink(holder, run, kept)

    def shrink(self, holder: Holder, run: Run, depth: int) -> None:
        """Let a holder hold only the first `depth` blocks of a run that is a leaf for it."""
        holder.held_blocks -= holder.depths[run] - depth
        if holder.expected.get(run, -1) >= depth:
            del holder.expected[run]
        if depth:
            holder.depths[run] = depth
        else:
            del holder.depths[run]
            run.holders ^= holder.bit
        self._tidy(run)

    def cleared(self, holder: Holder) -> None:
        holder.given_up.clear()
        for run in list(holder.depths):  # oldest first: children before parents
            self.shrink(holder, run, 0)

    def _split(self, run: Run, depth: int) -> Run:
        """Cut a run after `depth` blocks and return the new head.

        The run itself becomes the tail and keeps its age. The head is new at the young end of its holders: two
        prompts share it now, and a head may be younger than its tail but never older.
        """
        head = Run(run.keys[: depth * KEY_BYTES], run.parent, run.holders)
        head.branches = 1
        self.by_first[head.first] = head
        for holder in self.holders(head.holders):
            held = holder.depths[run]
            holder.depths[head] = min(held, depth)
            computed = holder.expected.pop(run, held)
            if computed < min(held, depth):
                holder.expected[head] = computed
            if held <= depth:
                del holder.depths[run]
                run.holders ^= holder.bit
                continue
            holder.depths[run] = held - depth
            if computed < held:
                holder.expected[run] = max(0, computed - depth)
        self._rejuvenate_ancestors(head)
        run.keys = run.keys[depth * KEY_BYTES :]
        run.parent = head
        self.by_first[run.first] = run
        return head

    def _rejuvenate_ancestors(self, run: Run) -> None:
        """Keep every ancestor younger than a run that has just been put at the young end."""
        ancestor = run.parent
        while ancestor is not None:
            for holder in self.holders(run.holders & ancestor.holders):
                holder.depths.move_to_end(ancestor)
            ancestor = ancestor.parent

    def _tidy(self, run: Run) -> None:
        """Give back the keys at a run's end that no replica holds any more; with the last holder goes the run."""
        if not run.keys:
            return
        if not run.holders:
            del self.by_first[run.first]
            if run.parent is not None:
                run.parent.branches -= 1
            return
        longest = max(holder.depths[run] for holder in self.holders(run.holders))
        if longest < len(run):
            run.keys = run.keys[: longest * KEY_BYTES]
