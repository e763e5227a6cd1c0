"""What one replica said it stored: block keys with their copies, exactly as its events told.

The one rule: a block can be hit only if every block before it is there too. An engine may hold a block twice (two
requests computed it at once) and then removes it twice; it may tell of a block whose parent was never told, which is
kept, counted as an orphan, and can be hit once the parent comes. Not here: how engine hashes become keys.
"""

from collections.abc import Iterable, Sequence


class _Block:
    __slots__ = ("children", "copies", "parent")

    def __init__(self, parent: bytes | None) -> None:
        self.parent = parent
        self.copies = 0
        self.children = 0
        """Present blocks that continue this one, which may itself be absent."""


class Copies:
    """The blocks of one replica, counted."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, _Block] = {}
        self._present = 0
        self.orphans = 0
        """Present blocks whose parent is absent. While there is none, presence along a prompt has a single end."""
        self.refused = 0
        """Stores that contradict themselves: a block twice in one chain."""

    def __len__(self) -> int:
        """Different blocks present, however many copies of each."""
        return self._present

    def __contains__(self, key: bytes) -> bool:
        block = self._blocks.get(key)
        return block is not None and block.copies > 0

    @property
    def records(self) -> int:
        """Entries in memory: the present blocks and the absent parents of orphans."""
        return len(self._blocks)

    def stored(self, keys: Sequence[bytes], parent: bytes | None) -> None:
        """One more copy of each of `keys`, which continue `parent` in this order; None is the start of a prompt."""
        if len({*keys, parent}) != len(keys) + 1:
            self.refused += 1
            return
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                block = self._blocks[key] = _Block(parent)
            if not block.copies:
                block.parent = parent
                self._appeared(block)
            block.copies += 1
            parent = key

    def removed(self, keys: Iterable[bytes]) -> None:
        """One copy less of each of `keys`; one that is not there was told before we listened."""
        for key in keys:
            block = self._blocks.get(key)
            if block is None or not block.copies:
                continue
            block.copies -= 1
            if not block.copies:
                self._vanished(key, block)

    def cleared(self) -> None:
        self._blocks.clear()
        self._present = self.orphans = 0

    def matched(self, blocks: Sequence[bytes]) -> int:
        """Leading blocks of a prompt that are present."""
        if self.orphans:
            return next((at for at, key in enumerate(blocks) if key not in self), len(blocks))
        low, high = 0, len(blocks)
        if high and blocks[-1] in self:
            return high
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in self:
                low = middle + 1
            else:
                high = middle
        return low

    def _appeared(self, block: _Block) -> None:
        self._present += 1
        self.orphans -= block.children
        if block.parent is not None:
            parent = self._blocks.get(block.parent)
            if parent is None:
                parent = self._blocks[block.parent] = _Block(None)
            parent.children += 1
            self.orphans += not parent.copies

    def _vanished(self, key: bytes, block: _Block) -> None:
        self._present -= 1
        self.orphans += block.children
        if not block.children:
            del self._blocks[key]
        if block.parent is not None:
            parent = self._blocks[block.parent]
            parent.children -= 1
            self.orphans -= not parent.copies
            if not parent.copies and not parent.children:
                del self._blocks[block.parent]
