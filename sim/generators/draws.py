"""Seeded draws that the presets share: streams, lengths, times.

The one rule: a stream for each purpose, named by it, so that changing one (the rate) leaves the others as they were.
"""

import itertools
import math
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass


def stream(seed: int, purpose: str) -> random.Random:
    """A generator that depends on the seed and the purpose alone, the same in every process."""
    return random.Random(f"{purpose} {seed}")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal whole numbers between `least` and `most`."""

    median: float
    sigma: float
    least: int
    most: int

    def of(self, draw: random.Random) -> int:
        return min(self.most, max(self.least, round(draw.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class Gaps:
    """Lognormal seconds, at most `most_s`."""

    median_s: float
    sigma: float
    most_s: float

    def of(self, draw: random.Random) -> float:
        return min(self.most_s, draw.lognormvariate(math.log(self.median_s), self.sigma))


def poisson(draw: random.Random, rate: float) -> Iterator[float]:
    """Times of a Poisson process of so many events per second, without end."""
    now_s = 0.0
    while True:
        now_s += draw.expovariate(rate)
        yield now_s


class Zipf:
    """Places 0 to n - 1, the i-th with a weight of (i + 1) ** -exponent."""

    def __init__(self, count: int, exponent: float) -> None:
        self._sums = list(itertools.accumulate((place + 1) ** -exponent for place in range(count)))

    def of(self, draw: random.Random) -> int:
        return bisect(self._sums, draw.random() * self._sums[-1])
