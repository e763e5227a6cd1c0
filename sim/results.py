"""From what became of every request to the numbers people compare policies by.

The one rule: a number that is not known is None, never 0; where a workload gives lengths only, nothing is said of hits.
Rates are over tokens, percentiles over requests that ended. Not here: printing them.

    hit rates    available: on the best replica, predicted: on the chosen one, both as the router believed at dispatch;
                 delivered (`hit_rate`): found in the real cache
    TPOT         (end - first token) / (output tokens - 1), for answers of two tokens and more
    goodput      requests per second that keep both limits (DistServe, OSDI 2024); an answer of one token has no TPOT
    imbalance    most computed prompt tokens on one replica over their mean
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.outcome import Outcome

CURVE_FRACTIONS = tuple(place / 200 for place in range(201))
"""Where the distributions that reports draw are sampled."""

_Mask = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count as good."""

    ttft_s: float = 1.0
    tpot_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over many requests."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, values: _Floats) -> "Spread":
        known = values[~np.isnan(values)]
        if not len(known):
            return cls()
        p50, p95, p99 = np.percentile(known, (50, 95, 99)).tolist()
        return cls(float(known.mean()), p50, p95, p99)


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of one route or one tenant."""

    name: str
    requests: int
    prompt_tokens: int
    computed_tokens: int | None
    hit_rate: float | None
    predicted_hit_rate: float | None
    available_hit_rate: float | None
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    goodput_fraction: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one workload of one seed; of a bound, latencies and what depends on them are None."""

    policy: str
    requests: int
    prompt_tokens: int
    computed_tokens: int | None
    """Prompt tokens that no cache had."""
    hit_rate: float | None
    predicted_hit_rate: float | None = None
    available_hit_rate: float | None = None
    ttft_s: Spread = Spread()
    tpot_s: Spread = Spread()
    e2e_s: Spread = Spread()
    goodput: float | None = None
    goodput_fraction: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    duration_s: float | None = None
    imbalance: float | None = None
    duplicated_fraction: float | None = None
    """Share of the blocks cached at the end that another replica has too."""
    preemptions: int | None = None
    queue_mean: float | None = None
    """Requests that waited on the chosen replica, as an arrival found it."""
    queue_max: int | None = None
    output_tokens: int | None = None
    refused: int = 0
    reasons: Mapping[str, int] | None = None
    computed_by_replica: tuple[int, ...] = ()
    requests_by_replica: tuple[int, ...] = ()
    routes: tuple[Part, ...] = ()
    tenants: tuple[Part, ...] = ()
    ttft_curve_s: tuple[float, ...] = ()
    """TTFT at `CURVE_FRACTIONS` of the requests."""


def result(policy: str, outcome: Outcome, *, limits: Limits, has_prefixes: bool = True) -> Result:
    """The numbers of one run."""
    times = _Times(outcome, limits)
    everything = np.ones(len(outcome.number), dtype=np.bool_)
    whole = _part("", outcome, times, everything, has_prefixes)
    computed = outcome.prompt_tokens - outcome.cached_tokens
    by_replica = np.bincount(outcome.replica, weights=computed, minlength=outcome.replicas).astype(np.int64)
    sent = np.bincount(outcome.replica, minlength=outcome.replicas)
    duration_s = times.duration_s
    output_tokens = int(outcome.output_tokens.sum())
    some = len(everything) > 0
    return Result(
        policy=policy,
        requests=whole.requests,
        prompt_tokens=whole.prompt_tokens,
        computed_tokens=whole.computed_tokens,
        hit_rate=whole.hit_rate,
        predicted_hit_rate=whole.predicted_hit_rate,
        available_hit_rate=whole.available_hit_rate,
        ttft_s=whole.ttft_s,
        tpot_s=whole.tpot_s,
        e2e_s=whole.e2e_s,
        goodput=float(times.good.sum()) / duration_s if duration_s else None,
        goodput_fraction=whole.goodput_fraction,
        requests_per_s=whole.requests / duration_s if duration_s else None,
        output_tokens_per_s=output_tokens / duration_s if duration_s else None,
        duration_s=duration_s,
        imbalance=float(by_replica.max() / by_replica.mean()) if by_replica.sum() else None,
        duplicated_fraction=outcome.duplicated_fraction if has_prefixes else None,
        preemptions=outcome.preemptions,
        queue_mean=float(outcome.queue.mean()) if some else None,
        queue_max=int(outcome.queue.max()) if some else None,
        output_tokens=output_tokens,
        refused=outcome.refused,
        reasons=dict(sorted(outcome.reasons.items())),
        computed_by_replica=tuple(by_replica.tolist()),
        requests_by_replica=tuple(sent.tolist()),
        routes=_parts(outcome, times, outcome.route, outcome.routes, has_prefixes),
        tenants=_parts(outcome, times, outcome.tenant, outcome.tenants, has_prefixes),
        ttft_curve_s=tuple(np.quantile(times.ttft_s, CURVE_FRACTIONS).tolist()) if some else (),
    )


class _Times:
    """What follows from the times of every request."""

    def __init__(self, outcome: Outcome, limits: Limits) -> None:
        self.ttft_s = outcome.first_s - outcome.sent_s
        self.e2e_s = outcome.end_s - outcome.sent_s
        self.tpot_s = np.full(len(outcome.number), np.nan)
        more = outcome.output_tokens > 1
        np.divide(outcome.end_s - outcome.first_s, outcome.output_tokens - 1, out=self.tpot_s, where=more)
        self.good: _Mask = (self.ttft_s <= limits.ttft_s) & ~(self.tpot_s > limits.tpot_s)
        ended = len(outcome.number) > 0
        self.duration_s = float(np.nanmax(outcome.end_s) - outcome.sent_s.min()) if ended else None


def _parts(
    outcome: Outcome, times: _Times, codes: npt.NDArray[np.int32], names: Sequence[str], has_prefixes: bool
) -> tuple[Part, ...]:
    """A part for each name, sorted by name; none when all requests share one."""
    if len(names) < 2:
        return ()
    return tuple(
        _part(name, outcome, times, codes == code, has_prefixes)
        for name, code in sorted((name, code) for code, name in enumerate(names))
    )


def _part(name: str, outcome: Outcome, times: _Times, mask: _Mask, has_prefixes: bool) -> Part:
    prompt_tokens = int(outcome.prompt_tokens[mask].sum())

    def rate(tokens: npt.NDArray[np.int32]) -> float | None:
        return int(tokens[mask].sum()) / prompt_tokens if has_prefixes and prompt_tokens else None

    cached = int(outcome.cached_tokens[mask].sum())
    requests = int(mask.sum())
    return Part(
        name=name,
        requests=requests,
        prompt_tokens=prompt_tokens,
        computed_tokens=prompt_tokens - cached if has_prefixes else None,
        hit_rate=rate(outcome.cached_tokens),
        predicted_hit_rate=rate(outcome.predicted_tokens),
        available_hit_rate=rate(outcome.available_tokens),
        ttft_s=Spread.of(times.ttft_s[mask]),
        tpot_s=Spread.of(times.tpot_s[mask]),
        e2e_s=Spread.of(times.e2e_s[mask]),
        goodput_fraction=float(times.good[mask].mean()) if requests else None,
    )


def averaged(results: Sequence[Result]) -> Result:
    """The mean of several seeds, number by number; whole numbers are rounded. Of one result, itself."""
    mean: Result = _mean(results) if len(results) > 1 else results[0]
    return mean


def _mean(values: Sequence[Any]) -> Any:
    first = values[0]
    if any(value is None for value in values):
        return None
    if isinstance(first, str):
        return first
    if isinstance(first, int):
        return round(sum(values) / len(values))
    if isinstance(first, float):
        return sum(values) / len(values)
    if isinstance(first, Mapping):
        return {key: _mean([value.get(key, 0) for value in values]) for key in sorted({k for v in values for k in v})}
    if is_dataclass(first) and not isinstance(first, type):
        return type(first)(*(_mean([getattr(value, field.name) for value in values]) for field in fields(first)))
    if first and isinstance(first[0], Part):
        named = [{part.name: part for part in value} for value in values]
        return tuple(_mean([parts[name] for parts in named if name in parts]) for name in sorted(set().union(*named)))
    return tuple(_mean(column) for column in zip(*values, strict=False))
