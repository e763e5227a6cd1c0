"""A trace in numbers: how much is asked, when, by whom, and how much of it a cache could know.

The one rule: what a trace does not tell is None, never 0. Hits are of one cache that forgets nothing and that only
prompts fill: no fleet gets more, unless answers are reused too. Not here: reading (`opening`), printing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.cache_replay import InfiniteCache, replayed
from sim.traces.continuations import common_blocks
from sim.traces.opening import Trace, read, sessions_of
from sim.traces.table import Ints, Names, Table


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of many requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: npt.NDArray[np.float64] | Ints) -> "Quantity | None":
        """None without a value."""
        if not len(values):
            return None
        p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
        return cls(float(values.mean()), p50, p90, p99, float(values.max()))


@dataclass(frozen=True, slots=True)
class Times:
    """When requests come."""

    duration_s: float
    requests_per_s: float
    distinct_times: int
    gap_variation: float | None
    """Standard deviation of the gaps between requests over their mean; a Poisson process has 1."""
    per_minute_mean: float | None
    per_minute_max: int | None
    dispersion: float | None
    """Variance of the requests of a minute over their mean; a Poisson process has 1, bursts have more."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Who continues whom."""

    count: int
    inferred: bool
    turns_mean: float
    turns_max: int
    single_turn_fraction: float
    """Share of the sessions that have one request."""
    gap_s: Quantity | None
    """Between the starts of two requests of a session."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What prompts share."""

    block_tokens: int
    ids: int
    unique_ids: int
    used_once_fraction: float
    """Share of the unique ids."""
    ideal_hit_fraction: float | None
    """Of prompt tokens: whole blocks, never the last token, as an engine reports it."""
    ideal_full_hit_fraction: float | None
    """Of full blocks."""
    ideal_id_hit_fraction: float | None
    """Of ids, where the id of a last block that is not full counts too, as it is mostly published."""
    head_ids: int
    """Ids in more than 1 % of the prompts (and more than 100): system prompts and tools."""
    longest_head_tokens: int
    headed_fraction: float
    """Share of the requests that begin with one."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A trace in numbers; None is unknown."""

    trace: str
    format: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    prompt: Quantity | None
    output: Quantity | None
    tenants: int | None
    routes: int | None
    times: Times | None
    sessions: Sessions | None
    prefixes: Prefixes | None
    skipped: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


def describe(path: str | Path, **options: Any) -> Statistics:
    """The numbers of a file; `options` are those of `read`. Raises `TraceError`."""
    return statistics(read(path, **options))


def statistics(trace: Trace) -> Statistics:
    """The numbers of a trace that was read."""
    table = trace.table
    sessions, notes = sessions_of(table)
    return Statistics(
        trace=trace.path.name,
        format=trace.format,
        requests=len(table),
        prompt_tokens=int(table.prompt_tokens.sum()),
        output_tokens=int(table.output_tokens.sum()),
        prompt=Quantity.of(table.prompt_tokens),
        output=Quantity.of(table.output_tokens),
        tenants=len(table.tenant.names) or None,
        routes=len(table.route.names) or None,
        times=None if trace.sessions_begin_at_zero else _times(table),
        sessions=_sessions(table, sessions, inferred=sessions is not table.session),
        prefixes=_prefixes(table) if table.has_prefixes else None,
        skipped=trace.skipped,
        notes=(*trace.notes, *notes),
    )


def _times(table: Table) -> Times | None:
    known = np.sort(table.time_s[~np.isnan(table.time_s)])
    if not len(known) or known[-1] == known[0]:
        return None
    gaps = np.diff(known)
    spent_s = float(known[-1] - known[0])
    minutes = np.bincount(((known - known[0]) // 60).astype(np.int64))[: int(spent_s // 60)]  # whole ones
    mean = float(minutes.mean()) if len(minutes) > 1 else None
    return Times(
        duration_s=spent_s,
        requests_per_s=len(known) / spent_s,
        distinct_times=len(np.unique(known)),
        gap_variation=float(gaps.std() / gaps.mean()),
        per_minute_mean=mean,
        per_minute_max=int(minutes.max()) if mean is not None else None,
        dispersion=float(minutes.var() / mean) if mean else None,
    )


def _sessions(table: Table, sessions: Names, *, inferred: bool) -> Sessions | None:
    told = sessions.codes >= 0
    if not told.any():
        return None
    turns = np.bincount(sessions.codes[told])
    turns = turns[turns > 0]
    order = np.lexsort((table.time_s, sessions.codes))
    codes, times = sessions.codes[order], table.time_s[order]
    gaps = np.diff(times)[(np.diff(codes) == 0) & (codes[1:] >= 0)]
    return Sessions(
        count=len(turns),
        inferred=inferred,
        turns_mean=float(turns.mean()),
        turns_max=int(turns.max()),
        single_turn_fraction=float((turns == 1).mean()),
        gap_s=Quantity.of(gaps[~np.isnan(gaps)]),
    )


def _prefixes(table: Table) -> Prefixes:
    found = replayed(table.prompts(), table.block_tokens, [InfiniteCache()])
    change = np.zeros(table.space + 1, np.int64)
    np.add.at(change, table.firsts, 1)
    np.add.at(change, table.lasts + 1, -1)
    uses = np.cumsum(change)
    common = common_blocks(table)
    longest, headed = 0, 0
    for row in np.flatnonzero(table.blocks > 0).tolist():
        shared = common[table.numbers(row)]
        if shared[0]:
            headed += 1
            longest = max(longest, len(shared) if shared.all() else int(shared.argmin()))
    return Prefixes(
        block_tokens=table.block_tokens,
        ids=int(uses.sum()),
        unique_ids=int((uses > 0).sum()),
        used_once_fraction=float((uses == 1).sum() / max(1, (uses > 0).sum())),
        ideal_hit_fraction=found.hit_fraction,
        ideal_full_hit_fraction=found.full_hit_fraction,
        ideal_id_hit_fraction=found.id_hit_fraction,
        head_ids=int(common.sum()),
        longest_head_tokens=longest * table.block_tokens,
        headed_fraction=headed / len(table),
    )
