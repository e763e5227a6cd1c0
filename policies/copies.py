"""What one replica said it stored: block keys with their copies, exactly as its events told.

The one rule: a block can be hit only if every block before it is there too. An engine may hold a block twice (two
requests computed it at once) and then removes it twice; it may tell of a block whose parent was never told, which is
kept, counted as an orphan, and can be hit once the parent comes. Not here: how engine hashes become keys.
"""

from collections.abc import Iterable, Sequence
from typing import Final

_COPY: Final = 1 << 32
"""One copy in a block's record; the bits below count present blocks that continue it."""

SHARD_OF: Final = bytes(shard for shard in range(54) for _ in range((3, 4, 5, 7)[shard % 4])).ljust(256, b"\0")
"""Dictionaries in place of one, by a byte of what is looked up: a dictionary that grows, or has had as many removed as
it holds, moves all it holds, of 100,000 blocks for over 10 ms. They are of several sizes, lest all do so at once."""
SHARDS: Final = max(SHARD_OF) + 1


class Copies:
    """The blocks of one replica, counted."""

    __slots__ = ("_parents", "_present", "_records", "orphans", "refused")

    def __init__(self) -> None:
        self._records: tuple[dict[bytes, int], ...] = tuple({} for _ in range(SHARDS))
        """Copies and children of each block: a number, not an object, so that a million cost the collector nothing."""
        self._parents: tuple[dict[bytes, bytes | None], ...] = tuple({} for _ in range(SHARDS))
        """Of present blocks."""
        self._present = 0
        self.orphans = 0
        """Present blocks whose parent is absent. While there is none, presence along a prompt has a single end."""
        self.refused = 0
        """Stores that contradict themselves: a block twice in one chain."""

    def __len__(self) -> int:
        """Different blocks present, however many copies of each."""
        return self._present

    def __contains__(self, key: bytes) -> bool:
        return key in self._parents[SHARD_OF[key[0]]]

    @property
    def records(self) -> int:
        """Entries in memory: the present blocks and the absent parents of orphans."""
        return sum(map(len, self._records))

    def stored(self, keys: Sequence[bytes], parent: bytes | None) -> None:
        """One more copy of each of `keys`, which continue `parent` in this order; None is the start of a prompt."""
        if len({*keys, parent}) != len(keys) + 1:
            self.refused += 1
            return
        for key in keys:
            self.stored_one(key, parent)
            parent = key

    def stored_one(self, key: bytes, parent: bytes | None) -> None:
        """One more copy of a block that continues `parent`, which is not itself."""
        shard = SHARD_OF[key[0]]
        records = self._records[shard]
        record = records.get(key, 0)
        records[key] = record + _COPY
        if record >= _COPY:
            return
        self._present += 1
        self.orphans -= record
        self._parents[shard][key] = parent
        if parent is not None:
            records = self._records[SHARD_OF[parent[0]]]
            record = records.get(parent, 0)
            records[parent] = record + 1
            if record < _COPY:
                self.orphans += 1

    def removed(self, keys: Iterable[bytes]) -> None:
        """One copy less of each of `keys`; one that is not there was told before we listened."""
        for key in keys:
            self.removed_one(key)

    def removed_one(self, key: bytes) -> None:
        """One copy less of a block."""
        shard = SHARD_OF[key[0]]
        records = self._records[shard]
        left = records.get(key, 0) - _COPY
        if left >= _COPY:
            records[key] = left
            return
        if left < 0:
            return
        self._present -= 1
        if left:
            self.orphans += left
            records[key] = left
        else:
            del records[key]
        parent = self._parents[shard].pop(key)
        if parent is not None:
            records = self._records[SHARD_OF[parent[0]]]
            left = records[parent] - 1
            if left < _COPY:
                self.orphans -= 1
            if left:
                records[parent] = left
            else:
                del records[parent]

    def cleared(self) -> None:
        for records, parents in zip(self._records, self._parents, strict=True):
            records.clear()
            parents.clear()
        self._present = self.orphans = 0

    def matched(self, blocks: Sequence[bytes]) -> int:
        """Leading blocks of a prompt that are present."""
        present = self._parents
        if self.orphans:
            absent = (at for at, key in enumerate(blocks) if key not in present[SHARD_OF[key[0]]])
            return next(absent, len(blocks))
        low, high = 0, len(blocks)
        if high and blocks[-1] in present[SHARD_OF[blocks[-1][0]]]:
            return high
        while low < high:
            middle = (low + high) // 2
            key = blocks[middle]
            if key in present[SHARD_OF[key[0]]]:
                low = middle + 1
            else:
                high = middle
        return low
