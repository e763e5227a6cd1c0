"""How many batches a publisher sends in a second, by their own times: what its replay buffer has to hold.

The one rule: the engine's clock is believed only for the time between two batches, and not where it jumps. The busiest
stretch counts, for a buffer is as long as it is in the busiest hour. Not here: what is in a batch.
"""

import math
from typing import Final

_STRETCH_S: Final = 5.0
_LEAST_S: Final = 1.0  # shorter than this says nothing of a pace
_JUMP_S: Final = 3600.0


class Pace:
    """Counts batches by stretches of some seconds."""

    __slots__ = ("_at_s", "_begun", "_begun_s", "_busiest", "_number")

    def __init__(self) -> None:
        self._busiest: float | None = None
        self._begun = self._number = 0
        self._begun_s = self._at_s = -math.inf

    def __repr__(self) -> str:
        return f"<Pace {self.per_s}>"

    def took(self, number: int, at_s: float | None) -> None:
        """Batch `number` was made at this time of the engine's clock; None where it does not say."""
        if at_s is None:
            return
        if not self._at_s <= at_s < self._at_s + _JUMP_S or number <= self._number:
            self._begun, self._begun_s = number, at_s
        elif at_s - self._begun_s >= _STRETCH_S:
            self._busiest = max(self._busiest or 0.0, (number - self._begun) / (at_s - self._begun_s))
            self._begun, self._begun_s = number, at_s
        self._number, self._at_s = number, at_s

    @property
    def per_s(self) -> float | None:
        """Batches a second when it was busiest; None before a second of them was heard."""
        span_s = self._at_s - self._begun_s
        now = (self._number - self._begun) / span_s if span_s >= _LEAST_S else None
        return max((found for found in (now, self._busiest) if found is not None), default=None)
