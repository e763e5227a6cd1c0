"""One request of a workload or a trace before anybody has placed it, and the workload it belongs to.

The one rule: an arrival says what would be asked, never what happened to it. Block keys stand for tokens: two prompts
have equal keys exactly as far as their full blocks are equal. Not here: where arrivals come from (`workload`, `traces`)
and what becomes of them (`run`).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `time_s` counts from the workload's start; a later turn of a closed session has a think time."""

    number: int
    """Place in the workload, from 0: its id."""
    time_s: float
    prompt_tokens: int
    output_tokens: int
    keys: tuple[bytes, ...]
    """Keys of all full blocks of prompt and answer together, at the workload's `block_tokens`; empty when unknown."""
    session: str | None = None
    user: str | None = None
    tenant: str = ""
    route: str = ""
    model: str = ""
    think_s: float | None = None
    """Seconds between the end of the session's previous request and this one; None goes by `time_s` alone."""
    reads_cache: bool = True
    cached_tokens: int | None = None
    """What a real engine delivered for this request, when the trace tells."""
    ttft_s: float | None = None
    """What a real engine took to its first token, when the trace tells."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals that can be gone through many times, in the order of `time_s`, always the same ones."""

    name: str
    block_tokens: int
    arrivals: Iterable[Arrival]
    """Each `iter` starts over; nothing of it need be in memory."""
    requests: int | None = None
    """How many arrivals there are; None while nobody counted."""
    has_prefixes: bool = True
    """False when only lengths are known: then there is nothing to say of hits."""
    notes: tuple[str, ...] = ()
    """What a reader of results must know, a sentence each."""
