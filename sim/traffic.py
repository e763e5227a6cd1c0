"""What a sweep sends at one rate after the other: a preset, or a trace whose times are stretched.

The one rule: values that any process makes the very same workload of. Not here: what is done with it (`curves`).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sim.arrivals import Workload
from sim.compare import ONE_TRACE
from sim.presets import preset
from sim.traces.opening import Trace, workload_of
from sim.traces.replays import Pace, Replay


class Traffic(Protocol):
    """Something with a rate."""

    @property
    def name(self) -> str: ...

    @property
    def told(self) -> dict[str, Any]:
        """Where it comes from, for JSON."""
        ...

    def at(self, rate: float, seed: int = 1) -> Workload:
        """So many requests a second of it."""
        ...

    def notes(self, rate: float, seeds: int) -> tuple[str, ...]:
        """What a reader of so many seeds must know."""
        ...


@dataclass(frozen=True, slots=True)
class PresetTraffic:
    """A preset and its options, but for rate and seed."""

    name: str
    options: tuple[tuple[str, object], ...] = ()

    @property
    def told(self) -> dict[str, Any]:
        return {"preset": self.name, "options": dict(self.options)}

    def at(self, rate: float, seed: int = 1) -> Workload:
        return preset(self.name, **{**dict(self.options), "rate": rate, "seed": seed})

    def notes(self, rate: float, seeds: int) -> tuple[str, ...]:
        del seeds
        return self.at(rate).notes


@dataclass(frozen=True, slots=True, eq=False)
class TraceTraffic:
    """A trace that was read; every seed has the same requests."""

    trace: Trace
    replay: Replay = "timestamps"
    cache_outputs: bool = True
    block_tokens: int | None = None

    @property
    def name(self) -> str:
        return self.trace.path.name

    @property
    def told(self) -> dict[str, Any]:
        return {"trace": self.name, "options": {"replay": self.replay, "cache_outputs": self.cache_outputs}}

    @property
    def rate(self) -> float:
        """The trace's own; 1 where it has no times."""
        known = self.trace.table.time_s[~np.isnan(self.trace.table.time_s)]
        spent_s = float(known.max() - known.min()) if len(known) else 0.0
        return len(known) / spent_s if spent_s and not self.trace.sessions_begin_at_zero else 1.0

    def at(self, rate: float, seed: int = 1) -> Workload:
        del seed
        pace = Pace(self.replay, rate=rate)
        return workload_of(self.trace, pace, block_tokens=self.block_tokens, cache_outputs=self.cache_outputs)

    def notes(self, rate: float, seeds: int) -> tuple[str, ...]:
        stretched = [note for note in self.at(rate).notes if not note.startswith("times were stretched")]
        return (*stretched, "times were stretched to each of the rates", *([ONE_TRACE] if seeds > 1 else []))
