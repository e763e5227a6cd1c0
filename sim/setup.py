"""The fleet that a workload meets, and how its router learns of it: what a run is asked to be.

The one rule: these are values, they travel between processes, and so stay interpreted where the engine is compiled.
Not here: what happens (`run`), and what is made of what the router learns (`belief`).
"""

from dataclasses import dataclass, field
from typing import Literal

from sim.cost import DEFAULT_PROFILE, PROFILES, Profile


@dataclass(frozen=True, slots=True)
class Belief:
    """How a router learns what its replicas hold and how loaded they are."""

    source: Literal["sent", "events", "truth"] = "sent"
    """What its index follows: its own dispatches; the engines' cache events beside them; or the caches themselves."""
    lag_s: float | tuple[float, ...] = 0.0
    """From the end of an engine step to the router's knowing of its events; one value, or one for each replica."""
    lost_fraction: float = 0.0
    """Share of event messages that never arrive. A message holds all events of one step."""
    capacity_factor: float | None = 1.0
    """The index's capacity for a replica as a multiple of the real one; None leaves the router to guess."""
    speculative: bool = True
    """Whether blocks count as held from the dispatch on; otherwise once the answer has ended, or an event tells."""
    knows_answers: bool = False
    """Whether the router learns an answer's tokens, and enters their blocks. One that only relays text does not."""
    corrected: bool = True
    """Whether replicas tell with each answer how many of its prompt's tokens they found cached."""
    report_every_s: float = 2.0
    """Between two reports of a replica's running and waiting requests and its pinned share; 0 is always fresh."""

    def __post_init__(self) -> None:
        if not 0 <= self.lost_fraction <= 1:
            raise ValueError(f"a lost fraction is between 0 and 1, not {self.lost_fraction}")
        if self.report_every_s < 0 or min(self._lags) < 0:
            raise ValueError("nothing is known before it happens: lags and intervals can't be negative")

    def lag_of(self, place: int) -> float:
        """The event lag of the replica at this place, in seconds."""
        return self._lags[place % len(self._lags)]

    @property
    def _lags(self) -> tuple[float, ...]:
        return self.lag_s if isinstance(self.lag_s, tuple) else (self.lag_s,)


@dataclass(frozen=True, slots=True)
class Setup:
    """The fleet that a workload meets. `blocks` of one replica, counted as the engine does: one is the null block."""

    replicas: int = 4
    blocks: int = 5_000
    profile: Profile = PROFILES[DEFAULT_PROFILE]
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    async_scheduling: bool = True
    """Whether engines decide a step while the one before it runs, as vLLM does by default."""
    belief: Belief = field(default_factory=Belief)
    seed: int = 1
