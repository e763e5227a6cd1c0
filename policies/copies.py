"""What one replica said it stored: block keys with their copies, exactly as its events told.

The one rule: a block can be hit only if every block before it is there too. An engine may hold a block twice (two
requests computed it at once) and then removes it twice; it may tell of a block whose parent was never told, which is
kept, counted as an orphan, and can be hit once the parent comes. Not here: how engine hashes become keys.
"""

from collections.abc import Iterable, Sequence

_COPY = 1 << 32
"""One copy in a block's record; the bits below count present blocks that continue it."""


class Copies:
    """The blocks of one replica, counted."""

    def __init__(self) -> None:
        self._records: dict[bytes, int] = {}
        """Copies and children of each block: a number, not an object, so that a million cost the collector nothing."""
        self._parents: dict[bytes, bytes | None] = {}
        """Of present blocks."""
        self.orphans = 0
        """Present blocks whose parent is absent. While there is none, presence along a prompt has a single end."""
        self.refused = 0
        """Stores that contradict themselves: a block twice in one chain."""

    def __len__(self) -> int:
        """Different blocks present, however many copies of each."""
        return len(self._parents)

    def __contains__(self, key: bytes) -> bool:
        return key in self._parents

    @property
    def records(self) -> int:
        """Entries in memory: the present blocks and the absent parents of orphans."""
        return len(self._records)

    def stored(self, keys: Sequence[bytes], parent: bytes | None) -> None:
        """One more copy of each of `keys`, which continue `parent` in this order; None is the start of a prompt."""
        if len({*keys, parent}) != len(keys) + 1:
            self.refused += 1
            return
        records = self._records
        if keys and records.keys().isdisjoint(keys):
            records.update(dict.fromkeys(keys, _COPY + 1))
            records[keys[-1]] = _COPY
            self._parents.update(zip(keys, (parent, *keys), strict=False))
            self._continued(parent)
            return
        for key in keys:
            record = records.get(key, 0)
            records[key] = record + _COPY
            if record < _COPY:
                self.orphans -= record
                self._parents[key] = parent
                self._continued(parent)
            parent = key

    def removed(self, keys: Iterable[bytes]) -> None:
        """One copy less of each of `keys`; one that is not there was told before we listened."""
        records = self._records
        for key in keys:
            left = records.get(key, 0) - _COPY
            if left >= _COPY:
                records[key] = left
            elif left >= 0:
                self.orphans += left
                self._left(key, left)
                parent = self._parents.pop(key)
                if parent is not None:
                    left = records[parent] - 1
                    self.orphans -= left < _COPY
                    self._left(parent, left)

    def cleared(self) -> None:
        self._records.clear()
        self._parents.clear()
        self.orphans = 0

    def matched(self, blocks: Sequence[bytes]) -> int:
        """Leading blocks of a prompt that are present."""
        present = self._parents
        if self.orphans:
            return next((at for at, key in enumerate(blocks) if key not in present), len(blocks))
        low, high = 0, len(blocks)
        if high and blocks[-1] in present:
            return high
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in present:
                low = middle + 1
            else:
                high = middle
        return low

    def _continued(self, parent: bytes | None) -> None:
        """A block that continues `parent` has appeared."""
        if parent is not None:
            record = self._records.get(parent, 0)
            self._records[parent] = record + 1
            self.orphans += record < _COPY

    def _left(self, key: bytes, record: int) -> None:
        if record:
            self._records[key] = record
        else:
            del self._records[key]
