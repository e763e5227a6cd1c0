"""Latency histograms under vLLM's names and with its buckets (0.32, `v1/metrics/loggers.py`)."""

from bisect import bisect_left
from collections.abc import Sequence

_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
FIRST_TOKEN_S = (*_FIRST_TOKEN_S, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
REQUEST_S = (*_REQUEST_S, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)


class Histogram:
    """How many values were at most each bound, and what they come to."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observed(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def cumulated(self) -> list[tuple[str, int]]:
        """Each bound as a label, the last one +Inf, with the values up to it."""
        told, sum_ = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self._counts, strict=True):
            sum_ += count
            told.append((str(bound), sum_))
        return told
