"""How many blocks of what a replica was sent stay cached there: its effective capacity, fitted from prediction errors.

    limit    stated blocks x factor - strange
    strange  blocks that running requests pin beside the prompts on their way: answers in the making, others' requests
    over     blocks predicted and not delivered: the mirror remembers longer than the replica
    under    blocks delivered beyond the prediction, where the mirror had given up just these for lack of room
    seen     blocks predicted or delivered, the larger of both
    factor   x exp(STEP x weight x (under - over) / (under + over)) after every `ERRING` reports that erred
    weight   min(1, (under + over) / (WRONG x seen)): a mirror that errs little moves little, so it does not flap

A multiplicative stochastic approximation (Robbins and Monro, 1951) of the capacity at which both errors weigh the
same. The one rule: what was delivered and never known (an answer, another router's prompt) says nothing of capacity.
"""

from math import exp
from typing import Final

STEP: Final = 0.25
ERRING: Final = 8
WRONG: Final = 0.04
LEAST_FACTOR: Final = 1 / 16
MOST_FACTOR: Final = 16.0
_LEAST_CHANGE: Final = 1 / 64
"""A limit that moves less than this share of itself stays: resizing is work, and reports come every second."""


class Capacity:
    """One replica's capacity: what it states, and what its reports show."""

    __slots__ = ("_erring", "_over", "_seen", "_strange_blocks", "_under", "assumed_blocks", "factor", "stated_blocks")

    def __init__(self, stated_blocks: int | None, assumed_blocks: int) -> None:
        """`assumed_blocks` stands for a size that is not stated."""
        self.stated_blocks = stated_blocks
        self.assumed_blocks = assumed_blocks
        self.factor = 1.0
        self._strange_blocks = 0
        self._forget()

    def __repr__(self) -> str:
        return f"<Capacity {self.stated_blocks or 'unknown'} x {self.factor:.3f} - {self._strange_blocks}>"

    @property
    def blocks(self) -> int | None:
        """The fitted capacity; None while it is neither stated nor fitted."""
        if self.factor == 1.0:
            return self.stated_blocks
        return round((self.assumed_blocks if self.stated_blocks is None else self.stated_blocks) * self.factor)

    @property
    def limit_blocks(self) -> int | None:
        """What is left of it for prompts, at least 1; None while it is unknown."""
        blocks = self.blocks
        return None if blocks is None else max(1, blocks - self._strange_blocks)

    def pinned(self, used_fraction: float | None, coming_blocks: int) -> None:
        """A report came: this share of the pool is pinned, `coming_blocks` of it by prompts that are on their way."""
        if self.stated_blocks is None or used_fraction is None:
            self._strange_blocks = 0
            return
        strange = max(0, round(used_fraction * self.stated_blocks) - coming_blocks)
        if abs(strange - self._strange_blocks) > self.stated_blocks * _LEAST_CHANGE or not strange:
            self._strange_blocks = strange

    def told(self, predicted_blocks: int, delivered_blocks: int, *, given_up: bool) -> bool:
        """One request's end; whether the factor moved. `given_up`: the mirror once knew the block after its match."""
        error = delivered_blocks - predicted_blocks
        self._seen += max(predicted_blocks, delivered_blocks)
        if error < 0:
            self._over -= error
        elif error and given_up:
            self._under += error
        else:
            return False
        self._erring += 1
        if self._erring < ERRING:
            return False
        wrong = self._over + self._under
        weight = min(1.0, wrong / (WRONG * self._seen))
        factor = self.factor * exp(STEP * weight * (self._under - self._over) / wrong)
        self._forget()
        moved = factor != self.factor
        self.factor = min(MOST_FACTOR, max(LEAST_FACTOR, factor))
        return moved

    def _forget(self) -> None:
        self._over = self._under = self._seen = self._erring = 0
