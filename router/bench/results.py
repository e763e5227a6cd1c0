"""What the answers of a phase come to: percentiles, throughput, what met the target, what was cached, what went wrong.

The one rule: latencies are of good answers, shares are of all requests that ended, and what was not told is None.
Cached tokens are believed where every good answer told them; else the engines' counters are taken, else nothing. Not
here: where answers come from (`phases`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from router.bench.driver import Answer
from router.bench.phases import Phase

Source = Literal["usage", "metrics"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a good latency is, in seconds; None asks nothing."""

    ttft_s: float | None = None
    e2e_s: float | None = None

    @property
    def is_set(self) -> bool:
        return self.ttft_s is not None or self.e2e_s is not None

    def met(self, answer: Answer) -> bool:
        """Whether a request was answered well and in time; one whose first token nobody saw was not."""
        if answer.error:
            return False
        in_time = self.ttft_s is None or (answer.ttft_s is not None and answer.ttft_s <= self.ttft_s)
        return in_time and (self.e2e_s is None or answer.e2e_s <= self.e2e_s)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 95th percentile; None where there is nothing to take them of."""

    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """One phase in numbers."""

    requests: int
    """Those that ended."""
    good: int
    errors: tuple[tuple[str, int], ...]
    late: int
    most_late_s: float
    ttft_s: Spread
    e2e_s: Spread
    tpot_s: Spread
    good_per_s: float | None
    """Good answers over the time from the first request due to the last answer's end."""
    output_tokens_per_s: float | None
    in_time_fraction: float | None
    """Of all requests that ended; None without a target."""
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cached_fraction: float | None
    cached_source: Source | None
    told: int
    """Good answers that said how much of their prompt was cached."""


def figures(phases: Sequence[Phase], target: Target) -> Figures:
    """The numbers of one phase, or of the same phase in several turns together."""
    answers = [answer for phase in phases for answer in phase.answers]
    good = [answer for answer in answers if not answer.error]
    length_s = sum(_length_s(phase) for phase in phases)
    output = _sum([answer.usage.output_tokens for answer in good])
    cached, fraction, source = _cached(phases, good)
    return Figures(
        requests=len(answers),
        good=len(good),
        errors=tuple(sorted(Counter(answer.error for answer in answers if answer.error).items())),
        late=sum(answer.is_late for answer in answers),
        most_late_s=max((answer.sent_s - answer.due_s for answer in answers), default=0.0),
        ttft_s=spread([answer.ttft_s for answer in good]),
        e2e_s=spread([answer.e2e_s for answer in good]),
        tpot_s=spread([answer.tpot_s for answer in good]),
        good_per_s=len(good) / length_s if length_s else None,
        output_tokens_per_s=output / length_s if output is not None and length_s else None,
        in_time_fraction=sum(map(target.met, answers)) / len(answers) if answers and target.is_set else None,
        prompt_tokens=_sum([answer.usage.prompt_tokens for answer in good]),
        output_tokens=output,
        cached_tokens=cached,
        cached_fraction=fraction,
        cached_source=source,
        told=sum(answer.usage.cached_tokens is not None for answer in good),
    )


def spread(values: Sequence[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    if not known:
        return Spread(None, None)
    p50, p95 = np.percentile(known, [50, 95])
    return Spread(float(p50), float(p95))


def _length_s(phase: Phase) -> float:
    """From the first request due to the last answer's end."""
    if not phase.answers:
        return 0.0
    return max(answer.end_s for answer in phase.answers) - min(answer.due_s for answer in phase.answers)


def _cached(phases: Sequence[Phase], good: Sequence[Answer]) -> tuple[int | None, float | None, Source | None]:
    """Cached tokens, their share of the prompts they are of, and who said so."""
    told, prompts = (
        _sum([answer.usage.cached_tokens for answer in good]),
        _sum([one.usage.prompt_tokens for one in good]),
    )
    if told is not None:
        return told, told / prompts if prompts else None, "usage"
    counts = [phase.counted for phase in phases]
    known = [count for count in counts if count is not None]
    queried = sum(count.queried_tokens for count in known)
    if len(known) < len(counts) or not queried:
        return None, None, None
    hit = sum(count.hit_tokens for count in known)
    return hit, hit / queried, "metrics"


def _sum(values: Sequence[int | None]) -> int | None:
    """None when one of them is unknown, or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
