"""Something kept for each replica a policy was ever offered, in bounded memory.

A replica that is missing from one view was tried before, or is closed for a while: what is kept for it stays. The one
rule: a replica that no view of many choices held is forgotten, so names that come and go do not pile up.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Kept = TypeVar("Kept")

SWEEP_CHOICES = 4096
"""A replica not offered between two sweeps is forgotten at the second."""


class Roster(Generic[Kept]):
    """Names and what is kept for each; `make` begins it for a new name."""

    def __init__(self, make: Callable[[str], Kept]) -> None:
        self._make = make
        self._kept: dict[str, Kept] = {}
        self._lately: set[str] = set()
        self._choices = 0
        self.changes = 0
        """How often a name came or went."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def names(self) -> list[str]:
        return list(self._kept)

    def offered(self, names: Sequence[str]) -> list[Kept]:
        """What is kept for these names, in their order: they are the view of one choice."""
        if not self._kept.keys() >= set(names):
            self._join(names)
        self._lately.update(names)
        self._choices += 1
        if self._choices % SWEEP_CHOICES == 0:
            self._sweep()
        return [self._kept[name] for name in names]

    def _join(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._kept:
                self._kept[name] = self._make(name)
                self.changes += 1

    def _sweep(self) -> None:
        gone = self._kept.keys() - self._lately
        for name in gone:
            del self._kept[name]
        self.changes += len(gone)
        self._lately.clear()
