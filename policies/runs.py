"""A run: consecutive block keys as one packed string, a node of the index's radix tree.

Keys are chained, so a run's first key names its place in every prompt and its last key proves all before it: two
sequences of keys that agree at one place agree before it too. Not here: who holds a run, and for how long.
"""

from collections.abc import Sequence

from msgspec import Struct

from policies.blocks import KEY_BYTES


class Run(Struct, eq=False, gc=False):
    """Consecutive keys, the run they continue, the runs that continue them, and a bit mask of their holders.

    The garbage collector does not look at runs: there may be millions, and they form no cycles.
    """

    keys: bytes
    parent: "Run | None"
    holders: int
    branches: int = 0
    """How many runs of the tree continue this one."""

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    @property
    def first(self) -> bytes:
        return self.keys[:KEY_BYTES]

    def common(self, blocks: Sequence[bytes], start: int) -> int:
        """How many blocks of this run equal `blocks[start:]`; the caller knows that the first one does."""
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


def agreeing_blocks(mine: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """How many leading blocks two prompts have in common."""
    low, high = 0, min(len(mine), len(theirs))
    if high and mine[high - 1] == theirs[high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if mine[middle - 1] == theirs[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
