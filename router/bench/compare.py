"""Two set-ups side by side: ratios of medians, and how far chance among the requests could have moved them.

Each turn of A and of B sends the same prompts at the same times, so requests come in pairs: number n of one turn. The
interval is a percentile bootstrap over pairs (Efron 1979), seeded. The one rule: it speaks of which requests were
drawn, not of other days or machines; a ratio of what is unknown on one side is None. Not here: the order of turns
(`phases`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router.bench.driver import Answer
from router.bench.phases import Name, Phase
from router.bench.results import Figures, Target, figures

RESAMPLES = 2000
_LEAST_PAIRS = 8
"""Below this the interval of a median says nothing."""
_CHUNK = 1_000_000

Floats = npt.NDArray[np.float64]
_MEASURES: tuple[tuple[str, Callable[[Answer], float | None]], ...] = (
    ("ttft", lambda answer: answer.ttft_s),
    ("e2e", lambda answer: answer.e2e_s),
    ("tpot", lambda answer: answer.tpot_s),
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of B over the median of A; less than 1: B is faster."""

    measure: str
    value: float | None
    low: float | None
    high: float | None
    """The 95 % interval; None where pairs are too few."""
    pairs: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One phase of one group at one rate on both sides."""

    group: str
    rate: float | None
    name: Name
    a: Figures
    b: Figures
    ratios: tuple[Ratio, ...]


def compared(phases: Sequence[Phase], target: Target, seed: int) -> tuple[Compared, ...]:
    """Every phase both sides went through, in the order they were run first."""
    rows: dict[tuple[str, float | None, Name], dict[str, list[Phase]]] = {}
    for phase in phases:
        part = phase.part
        rows.setdefault((part.group.name, part.rate, part.name), {}).setdefault(part.side.name, []).append(phase)
    found = []
    for (group, rate, name), sides in rows.items():
        if sorted(sides) != ["A", "B"]:
            continue
        a, b = sides["A"], sides["B"]
        pairs = _paired(a, b)
        ratios = tuple(_ratio(measure, of, pairs, seed) for measure, of in _MEASURES)
        found.append(Compared(group, rate, name, figures(a, target), figures(b, target), ratios))
    return tuple(found)


def ratio_interval(a: Floats, b: Floats, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 2.5th and 97.5th percentile of median(b)/median(a) over resampled pairs."""
    dice = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // len(a))
    found = []
    for start in range(0, resamples, chunk):
        drawn = dice.integers(0, len(a), size=(min(chunk, resamples - start), len(a)))
        found.append(np.median(b[drawn], axis=1) / np.median(a[drawn], axis=1))
    low, high = np.percentile(np.concatenate(found), [2.5, 97.5])
    return float(low), float(high)


def _paired(a: Sequence[Phase], b: Sequence[Phase]) -> list[tuple[Answer, Answer]]:
    """Good answers to the same request of the same turn."""
    found = {phase.part.turn: {answer.number: answer for answer in phase.answers} for phase in b}
    return [
        (answer, other)
        for phase in a
        for answer in phase.answers
        if (other := found.get(phase.part.turn, {}).get(answer.number)) and not answer.error and not other.error
    ]


def _ratio(
    measure: str, of: Callable[[Answer], float | None], pairs: Sequence[tuple[Answer, Answer]], seed: int
) -> Ratio:
    known = [(x, y) for one, other in pairs if (x := of(one)) is not None and (y := of(other)) is not None and x > 0]
    if not known:
        return Ratio(measure, None, None, None, 0)
    a, b = np.array(known).T
    value = float(np.median(b) / np.median(a))
    if len(known) < _LEAST_PAIRS:
        return Ratio(measure, value, None, None, len(known))
    low, high = ratio_interval(a, b, seed)
    return Ratio(measure, value, low, high, len(known))
