"""Which replica probably holds which prefix: a radix tree of block runs with one bounded LRU per replica.

    node      a run of consecutive block keys. Keys are chained, so a run's first key names its place in every prompt
              and its last key proves all before it: a run is found by one dict look-up and matched by one comparison
    holder    a replica that holds the first `depth` blocks of a node; it holds a child only if it holds all of the node
    recency   per replica, oldest first. A prompt is touched from its tail to its head, so the oldest node of a replica
              is always a leaf for it: tails go before heads, as in vLLM's free queue

Look-ups never touch recency. Not here: time, load, and how keys are made.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from policies.blocks import KEY_BYTES
from policies.errors import FleetError

SHARED_AFTER = 8
"""Blocks followed by at least this many different continuations belong to everybody (a system prompt, tools)."""


class _Node:
    __slots__ = ("branches", "holders", "keys", "parent")

    def __init__(self, keys: bytes, parent: "_Node | None", holders: int) -> None:
        self.keys = keys
        self.parent = parent
        self.holders = holders
        self.branches = 0

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    @property
    def first(self) -> bytes:
        return self.keys[:KEY_BYTES]

    def common(self, blocks: Sequence[bytes], start: int) -> int:
        """How many blocks of this run equal `blocks[start:]`; the first is known to."""
        limit = min(len(self.keys) // KEY_BYTES, len(blocks) - start)
        if self.keys.startswith(blocks[start + limit - 1], (limit - 1) * KEY_BYTES):
            return limit
        low, high = 1, limit - 1  # low blocks agree, the one after high does not
        while low < high:
            middle = (low + high + 1) // 2
            if self.keys.startswith(blocks[start + middle - 1], (middle - 1) * KEY_BYTES):
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(slots=True)
class _Holder:
    name: str
    bit: int
    capacity_blocks: int | None
    held_blocks: int = 0
    depths: "OrderedDict[_Node, int]" = field(default_factory=OrderedDict)


class PrefixIndex:
    """The router's belief. Every method is O(nodes on the path) or, for an eviction, O(nodes evicted)."""

    def __init__(self, *, unknown_capacity_blocks: int = 50_000) -> None:
        """`unknown_capacity_blocks` bounds a replica that has not told its size."""
        self._unknown_capacity_blocks = unknown_capacity_blocks
        self._by_first: dict[bytes, _Node] = {}
        self._holders: dict[str, _Holder] = {}
        self._by_bit: dict[int, _Holder] = {}

    def __repr__(self) -> str:
        held = sum(holder.held_blocks for holder in self._holders.values())
        return f"<PrefixIndex {len(self._holders)} replicas, {len(self._by_first)} runs, {held} blocks held>"

    # -- membership ------------------------------------------------------------------------------------------------

    def joined(self, name: str, capacity_blocks: int | None = None) -> None:
        if name in self._holders:
            raise FleetError(f"replica {name!r} joined the index twice")
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        holder = _Holder(name, bit, capacity_blocks)
        self._holders[name] = self._by_bit[bit] = holder

    def left(self, name: str) -> None:
        holder = self._holder(name)
        self._drop_all(holder)
        del self._holders[name], self._by_bit[holder.bit]

    def resized(self, name: str, capacity_blocks: int | None) -> None:
        holder = self._holder(name)
        holder.capacity_blocks = capacity_blocks
        self._evict(holder)

    def cleared(self, name: str) -> None:
        """The replica's cache is empty: it restarted, or was reset."""
        self._drop_all(self._holder(name))

    # -- belief ----------------------------------------------------------------------------------------------------

    def recorded(self, name: str, blocks: Sequence[bytes]) -> None:
        """The replica now holds this whole prefix, most recently used."""
        if not blocks:
            return
        holder = self._holder(name)
        path, covered = self._path(blocks)
        if covered < len(blocks):
            path = self._grown(holder, path, covered, blocks)
        depths = holder.depths
        for node, depth in reversed(path):
            before = depths.get(node, 0)
            if depth > before:
                holder.held_blocks += depth - before
                node.holders |= holder.bit
                depths[node] = depth
            depths.move_to_end(node)
        self._evict(holder)

    def withdrawn(self, name: str, blocks: Sequence[bytes], kept: int) -> None:
        """Forget what this replica holds of a prefix beyond its first `kept` blocks, but for what others built on."""
        holder = self._holder(name)
        path, _ = self._path(blocks)
        start = sum(depth for _, depth in path)
        for node, depth in reversed(path):
            start -= depth
            held = holder.depths.get(node, 0)
            if not held:
                continue  # evicted here, but still known from another replica
            wanted = max(0, kept - start)
            if wanted >= held or held > depth:
                return
            if node.branches and any(child.parent is node for child in holder.depths):
                return
            self._shrink(holder, node, wanted)

    def matched(self, blocks: Sequence[bytes]) -> dict[str, int]:
        """Leading blocks of a prompt that each replica probably holds; replicas that hold none are absent."""
        path, _ = self._path(blocks)
        found: dict[str, int] = {}
        seen = 0
        start = sum(depth for _, depth in path)
        for node, depth in reversed(path):
            start -= depth
            mask = node.holders & ~seen
            seen |= mask
            while mask:
                bit = mask & -mask
                mask ^= bit
                holder = self._by_bit[bit]
                found[holder.name] = start + min(depth, holder.depths[node])
        return found

    def shared_blocks(self, blocks: Sequence[bytes]) -> int:
        """How many leading blocks of a prompt have been followed by many different continuations."""
        path, _ = self._path(blocks)
        shared = start = 0
        for node, depth in path:
            start += depth
            if node.branches >= SHARED_AFTER and depth == len(node):
                shared = start
        return shared

    def held_blocks(self, name: str) -> int:
        return self._holder(name).held_blocks

    @property
    def runs(self) -> int:
        """Nodes in the tree: a measure of its memory."""
        return len(self._by_first)

    # -- the tree --------------------------------------------------------------------------------------------------

    def _holder(self, name: str) -> _Holder:
        try:
            return self._holders[name]
        except KeyError:
            raise FleetError(f"the index knows no replica {name!r}") from None

    def _path(self, blocks: Sequence[bytes]) -> tuple[list[tuple[_Node, int]], int]:
        """The nodes along a prompt with how many of their blocks it covers, and how many of its blocks are known."""
        path = []
        start = 0
        total = len(blocks)
        while start < total:
            node = self._by_first.get(blocks[start])
            if node is None:
                break
            common = node.common(blocks, start)
            path.append((node, common))
            start += common
            if common < len(node):
                break
        return path, start

    def _grown(
        self, holder: _Holder, path: list[tuple[_Node, int]], covered: int, blocks: Sequence[bytes]
    ) -> list[tuple[_Node, int]]:
        """Add the unknown rest of a prompt to the tree; return the path that now covers all of it."""
        rest = b"".join(blocks[covered:])
        parent = None
        if path:
            parent, depth = path[-1]
            if depth < len(parent):
                parent = self._split(parent, depth)
                path[-1] = (parent, depth)
            elif not parent.branches and parent.holders == holder.bit and holder.depths[parent] == depth:
                # A conversation's next turn: nobody else knows this leaf, so it grows in place.
                parent.keys += rest
                path[-1] = (parent, len(parent))
                return path
            parent.branches += 1
        node = _Node(rest, parent, 0)
        self._by_first[node.first] = node
        path.append((node, len(node)))
        return path

    def _split(self, node: _Node, depth: int) -> _Node:
        """Cut a node after `depth` blocks and return the new head.

        The node itself becomes the tail and keeps its age. The head is new at the young end of its holders: two
        prompts share it now, and a head may be younger than its tail but never older.
        """
        head = _Node(node.keys[: depth * KEY_BYTES], node.parent, node.holders)
        head.branches = 1
        self._by_first[head.first] = head
        mask = node.holders
        while mask:
            bit = mask & -mask
            mask ^= bit
            depths = self._by_bit[bit].depths
            held = depths[node]
            depths[head] = min(held, depth)
            if held > depth:
                depths[node] = held - depth
            else:
                del depths[node]
                node.holders ^= bit
        self._age_ancestors(head)
        node.keys = node.keys[depth * KEY_BYTES :]
        node.parent = head
        self._by_first[node.first] = node
        if not node.holders:
            self._remove(node)
        else:
            self._trim_unheld(node)
        return head

    def _age_ancestors(self, node: _Node) -> None:
        """Keep every ancestor younger than a node that has just been put at the young end."""
        ancestor = node.parent
        while ancestor is not None:
            mask = node.holders & ancestor.holders
            while mask:
                bit = mask & -mask
                mask ^= bit
                self._by_bit[bit].depths.move_to_end(ancestor)
            ancestor = ancestor.parent

    def _evict(self, holder: _Holder) -> None:
        capacity = holder.capacity_blocks
        limit = self._unknown_capacity_blocks if capacity is None else capacity
        while holder.held_blocks > limit:
            node, depth = next(iter(holder.depths.items()))
            self._shrink(holder, node, max(0, depth - (holder.held_blocks - limit)))

    def _shrink(self, holder: _Holder, node: _Node, depth: int) -> None:
        """Let a replica hold only the first `depth` blocks of a node that is a leaf for it."""
        held = holder.depths[node]
        holder.held_blocks -= held - depth
        if depth:
            holder.depths[node] = depth
            self._trim_unheld(node)
            return
        del holder.depths[node]
        node.holders &= ~holder.bit
        if node.holders:
            self._trim_unheld(node)
        else:
            self._remove(node)

    def _trim_unheld(self, node: _Node) -> None:
        """Give back the keys at a node's end that no replica holds any more."""
        longest = max(holder.depths[node] for holder in self._holders_of(node))
        if longest < len(node):
            node.keys = node.keys[: longest * KEY_BYTES]

    def _holders_of(self, node: _Node) -> Iterable[_Holder]:
        mask = node.holders
        while mask:
            bit = mask & -mask
            mask ^= bit
            yield self._by_bit[bit]

    def _remove(self, node: _Node) -> None:
        del self._by_first[node.first]
        if node.parent is not None:
            node.parent.branches -= 1

    def _drop_all(self, holder: _Holder) -> None:
        for node in list(holder.depths):  # oldest first: children before parents
            self._shrink(holder, node, 0)
