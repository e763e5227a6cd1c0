"""Blocks whose parent was never told: kept aside until it is, the oldest making room.

The one rule: what was removed while it waited is gone when its parent comes. Not here: keys (`kv_runs`).
"""

from collections import Counter, OrderedDict
from collections.abc import Container, Sequence

from router.kv_runs import Piece


class Aside:
    """Blocks whose parent was never told, until it is; the oldest make room."""

    def __init__(self, limit_blocks: int) -> None:
        self._limit_blocks = limit_blocks
        self._by_parent: OrderedDict[int, list[Piece]] = OrderedDict()
        self._copies: Counter[int] = Counter()
        self._blocks = 0

    def __len__(self) -> int:
        return self._blocks

    @property
    def awaited(self) -> Container[int]:
        """The blocks that something waits for."""
        return self._by_parent

    def add(self, piece: Piece) -> None:
        if piece.parent is None:
            raise ValueError("a piece without a parent has nothing to wait for")
        self._by_parent.setdefault(piece.parent, []).append(piece)
        self._copies.update(piece.hashes)
        self._blocks += len(piece.hashes)
        while self._blocks > self._limit_blocks:
            for dropped in self._by_parent.popitem(last=False)[1]:
                self._taken(dropped)

    def removed(self, found: int) -> bool:
        """One copy of a block that waits is gone; False when none waits."""
        if not self._copies[found]:
            return False
        self._one_less(found)
        return True

    def continuing(self, hashes: Sequence[int], gone: list[int]) -> list[Piece]:
        """Take out what waited for one of these blocks; what of it was removed meanwhile is added to `gone`."""
        found: list[Piece] = []
        for parent in hashes:
            for piece in self._by_parent.pop(parent, ()):
                gone += self._taken(piece)
                found.append(piece)
        return found

    def _taken(self, piece: Piece) -> list[int]:
        self._blocks -= len(piece.hashes)
        gone = []
        for found in piece.hashes:
            if self._copies[found]:
                self._one_less(found)
            else:
                gone.append(found)
        return gone

    def _one_less(self, found: int) -> None:
        self._copies[found] -= 1
        if not self._copies[found]:
            del self._copies[found]
