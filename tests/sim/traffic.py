"""What tests measure of traffic: lengths, and what one cache without end finds."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sim.arrivals import Arrival, Workload


@dataclass(frozen=True)
class Found:
    """Measured of one workload. Fractions of prompt tokens for hits, of requests for the rest."""

    requests: int
    rate: float
    prompt_mean: float
    prompt_p50: float
    prompt_p90: float
    output_mean: float
    output_p50: float
    hit: float
    later_turns: float
    gap_cv: float
    minute_dispersion: float


def found(workload: Workload) -> Found:
    arrivals = list(workload.arrivals)
    times = np.array([arrival.time_s for arrival in arrivals])
    prompts = np.array([arrival.prompt_tokens for arrival in arrivals])
    outputs = np.array([arrival.output_tokens for arrival in arrivals])
    sessions = [arrival.session for arrival in arrivals if arrival.session is not None]
    gaps = np.diff(times)
    minutes = np.bincount((times // 60).astype(int))[:-1]
    return Found(
        requests=len(arrivals),
        rate=len(arrivals) / float(times[-1]),
        prompt_mean=float(prompts.mean()),
        prompt_p50=float(np.median(prompts)),
        prompt_p90=float(np.percentile(prompts, 90)),
        output_mean=float(outputs.mean()),
        output_p50=float(np.median(outputs)),
        hit=hit_tokens(arrivals, workload.block_tokens) / int(prompts.sum()),
        later_turns=(len(sessions) - len(set(sessions))) / len(arrivals),
        gap_cv=float(gaps.std() / gaps.mean()),
        minute_dispersion=float(minutes.var() / minutes.mean()) if len(minutes) else 0.0,
    )


def hit_tokens(arrivals: Iterable[Arrival], block_tokens: int) -> int:
    seen: set[bytes] = set()
    hits = 0
    for arrival in arrivals:
        for key in arrival.keys[: (arrival.prompt_tokens - 1) // block_tokens]:
            if key not in seen:
                break
            hits += block_tokens
        seen.update(arrival.keys)
    return hits
