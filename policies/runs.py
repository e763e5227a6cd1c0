"""A run: consecutive block keys as one packed string, a node of the index's radix tree.

Keys are chained, so a run's first key names its place in every prompt and its last key proves all before it. The one
rule: a run is a value of msgspec in every way to run this, since nothing else is as small and left alone by the garbage
collector. Not here: who holds a run, and for how long.
"""

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
