"""Requests of which a real engine told the times, sent through one simulated replica: what it would have taken.

The one rule: every request reaches the engine when it did in reality, so what differs is the model's doing. Prompts
share what they are told to begin with, else nothing; a preempted request still finds its own blocks. Not here: fitting
(`calibrate`), and how prompts begin (`engine_prompts`).
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost import Profile
from sim.jobs import Job
from sim.timed import TimedReplica

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as a log tells of it; `queued_s` is when the engine had it, on any clock."""

    queued_s: float
    prompt_tokens: int
    output_tokens: int
    begins: tuple[bytes, ...] = ()
    """Keys of the prompt's first full blocks, of the engine's size, as far as they are told; 16 bytes each."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of each request, in the order given: to its first token, per later one (NaN if none), to its last."""

    ttft_s: Seconds
    tpot_s: Seconds
    e2e_s: Seconds
    preemptions: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the cache."""

    @classmethod
    def of(
        cls,
        first_s: Sequence[float],
        last_s: Sequence[float],
        sent: Sequence[Sent],
        preemptions: int = 0,
        cached_tokens: int = 0,
    ) -> "Timings":
        """From the clock readings of first and last tokens."""
        queued, first, last = (np.array(column) for column in ([each.queued_s for each in sent], first_s, last_s))
        later = np.array([each.output_tokens - 1 for each in sent], dtype=np.float64)
        tpot = np.divide(last - first, later, out=np.full(len(sent), math.nan), where=later > 0)
        return cls(first - queued, tpot, last - queued, preemptions, cached_tokens)


def replayed(
    sent: Sequence[Sent],
    profile: Profile,
    blocks: int,
    *,
    block_tokens: int = 16,
    max_num_seqs: int = 256,
    max_batched_tokens: int = 8192,
    async_scheduling: bool = False,
) -> Timings:
    """Send the requests through one replica. `JobRefused` when one is too long for `blocks`."""
    replica = TimedReplica(
        "replay",
        profile,
        blocks=blocks,
        block_tokens=block_tokens,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        async_scheduling=async_scheduling,
    )
    first_s, last_s = [math.nan] * len(sent), [math.nan] * len(sent)

    def advanced(until_s: float) -> None:
        while (now_s := replica.next_s) is not None and now_s < until_s:
            moment = replica.advance(now_s)
            for number in moment.first:
                first_s[int(number)] = now_s
            for number in moment.finished:
                last_s[int(number)] = now_s

    for number in sorted(range(len(sent)), key=lambda place: sent[place].queued_s):
        request = sent[number]
        advanced(request.queued_s)
        replica.submit(_job(number, request, block_tokens), request.queued_s)
    advanced(math.inf)
    counters = replica.counters
    return Timings.of(first_s, last_s, sent, counters.preemptions, counters.cached_tokens)


def _job(number: int, request: Sent, block_tokens: int) -> Job:
    full = (request.prompt_tokens + request.output_tokens) // block_tokens
    own = tuple(struct.pack(">QQ", number, place) for place in range(len(request.begins), full))
    return Job(number, request.prompt_tokens, request.output_tokens, request.begins + own)
