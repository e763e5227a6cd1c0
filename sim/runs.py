"""What a cache in runs is made of: runs of blocks, stretches of them that are free, and what a request holds.

The one rule: these are a cache's own notes, changed by `run_cache` alone. Places count blocks from a prompt's first.
"""

from collections.abc import Sequence


class Run:
    """Consecutive blocks `start:end` of `keys`, computed by one request; the first `top - start` are pinned."""

    __slots__ = ("copied", "end", "keys", "oldest", "owner", "pins", "start", "stretches", "top")

    def __init__(self, keys: Sequence[bytes], start: int, end: int, *, oldest: bool) -> None:
        self.keys = keys
        self.start = start
        self.end = end
        self.top = end
        self.pins: dict[int, int] = {}  # how many pin the blocks before this place
        self.stretches: list[Stretch] = []  # the unpinned ones, oldest and highest first
        self.owner: Hold | None = None  # the request that still adds to it and pins all of it
        self.oldest = oldest  # a match finds it
        self.copied = False  # there may be younger copies of some of its keys


class Stretch:
    """Blocks `low:high` of a run that became free at one time; the highest is reused first."""

    __slots__ = ("high", "low", "run")

    def __init__(self, run: Run, low: int, high: int) -> None:
        self.run = run
        self.low = low
        self.high = high


class Hold:
    """What one request pins: beginnings of runs, in chain order. The first `filled` of its blocks have keys.

    Of one that is `followed` the cache learns only when it looks how many blocks it has `reached`.
    """

    __slots__ = ("filled", "followed", "growing", "keys", "path")

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys
        self.path: list[tuple[Run, int]] = []
        self.growing: Run | None = None
        self.filled = 0
        self.followed = False

    def reached(self) -> int:
        """Full blocks that have keys, as of now."""
        return self.filled
