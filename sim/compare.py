"""One comparison: the same arrivals and seeds for the bounds and every policy.

The one rule: paired. Every policy meets the very same workload, so differences are the policy's. Each run is turned
into numbers as soon as it ends, so that only one run's requests are in memory. Not here: options and printing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from policies.plugins import load
from sim.arrivals import Workload
from sim.bounds import ORACLE, cache_bounds, oracle
from sim.results import Limits, Result, Spread, averaged, result
from sim.run import Setup, simulate
from sim.workload import LESSON, lesson_turns, scored

LENGTHS_ONLY = "lengths only: no prefix analysis"
ONE_TRACE = "seeds are those of the policies alone: the trace stays the same"

Told = Callable[[str, int, int], None]
"""Told the row, its seed, and how many requests have ended."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a comparison: a bound or a policy, once for each seed."""

    results: tuple[Result, ...]

    @property
    def policy(self) -> str:
        return self.results[0].policy

    @property
    def mean(self) -> Result:
        """Over the seeds."""
        return averaged(self.results)

    @property
    def spread(self) -> dict[str, tuple[float, float]]:
        """Least and most of each number over the seeds; of a latency its parts, as in `ttft_s.p99`."""
        found: dict[str, tuple[float, float]] = {}
        for field in fields(Result):
            values = [getattr(one, field.name) for one in self.results]
            if all(isinstance(value, int | float) for value in values):
                found[field.name] = min(values), max(values)
            elif all(isinstance(value, Spread) for value in values):
                for name in ("mean", "p50", "p95", "p99"):
                    parts = [getattr(value, name) for value in values]
                    if all(part is not None for part in parts):
                        found[f"{field.name}.{name}"] = min(parts), max(parts)
        return found


@dataclass(frozen=True, slots=True)
class LessonRow:
    """A row of the lesson's table, scored on plain LRU stores. `blocks` of each replica."""

    scenario: str
    blocks: int
    hit_rate: float
    computed_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything a report tells."""

    source: Literal["preset", "trace"]
    name: str
    seeds: tuple[int, ...]
    setup: Setup
    block_tokens: int
    has_prefixes: bool
    limits: Limits
    bounds: tuple[Row, ...]
    rows: tuple[Row, ...]
    lesson: tuple[LessonRow, ...] = ()
    notes: tuple[str, ...] = ()


def compare(
    workload_of: Callable[[int], Workload],
    policies: Sequence[str],
    setup: Setup,
    *,
    source: Literal["preset", "trace"] = "preset",
    seeds: Sequence[int] = (1,),
    limits: Limits | None = None,
    with_bounds: bool = True,
    told: Told | None = None,
) -> Comparison:
    """Run the workload of every seed under every policy. `policies` are names that `policies.plugins.load` knows."""
    limits = limits or Limits()
    told = told or (lambda *_: None)
    found: dict[str, list[Result]] = {}
    bounds: dict[str, list[Result]] = {}
    workload = None
    for seed in seeds:
        workload = workload_of(seed)
        seeded = replace(setup, seed=seed)
        if with_bounds and workload.has_prefixes:
            for bound in cache_bounds(workload):
                bounds.setdefault(bound.policy, []).append(bound)
            outcome = oracle(workload, seeded, progress=_telling(told, ORACLE, seed))
            bounds.setdefault(ORACLE, []).append(result(ORACLE, outcome, limits=limits))
        for name in policies:
            outcome = simulate(workload, load(name, seed=seed), seeded, progress=_telling(told, name, seed))
            numbers = result(name, outcome, limits=limits, has_prefixes=workload.has_prefixes)
            found.setdefault(name, []).append(numbers)
    if workload is None:
        raise ValueError("a comparison needs a seed at least")
    rows = tuple(Row(tuple(results)) for results in found.values())
    return Comparison(
        source=source,
        name=workload.name,
        seeds=tuple(seeds),
        setup=setup,
        block_tokens=workload.block_tokens,
        has_prefixes=workload.has_prefixes,
        limits=limits,
        bounds=tuple(Row(tuple(results)) for results in bounds.values()),
        rows=rows,
        notes=(*_notes(workload, setup, rows), *([ONE_TRACE] if source == "trace" and len(seeds) > 1 else [])),
    )


def lesson_rows(seed: int = 1) -> tuple[LessonRow, ...]:
    """The lesson's table."""
    turns = lesson_turns(seed)
    scores = [(scenario, scored(scenario, turns)) for scenario in LESSON]
    return tuple(
        LessonRow(scenario.name, scenario.blocks, score.hit_fraction, score.computed_tokens, score.total_tokens)
        for scenario, score in scores
    )


def _telling(told: Told, name: str, seed: int) -> Callable[[int], None]:
    return lambda ended: told(name, seed, ended)


def _notes(workload: Workload, setup: Setup, rows: Sequence[Row]) -> tuple[str, ...]:
    notes = list(workload.notes)
    if not workload.has_prefixes and LENGTHS_ONLY not in notes:
        notes.append(LENGTHS_ONLY)
    if workload.has_prefixes and not setup.belief.knows_answers:
        notes.append("the router is not told the tokens of answers, so replicas may deliver more than it predicts")
    if not setup.profile.calibrated:
        notes.append(
            f"profile {setup.profile.name} is not calibrated on a real server: trust the order of policies, not the"
            " milliseconds (they can be off by a quarter)"
        )
    refused = max((one.refused for row in rows for one in row.results), default=0)
    if refused:
        notes.append(f"{refused} requests are longer than a replica's cache and were left out")
    return tuple(notes)
