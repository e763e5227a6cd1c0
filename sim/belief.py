"""What the router knows in virtual time: its fleet's book, told only what a router would be told, and as late.

The one rule: the truth is in the replicas, and nothing of it gets here but by the ways of `Belief`: what was sent
where, the engine's cache events after a lag and with losses, and the replicas' reports at their interval. The one
exception says so in its name, `truth`: the bound that a policy with a perfect index reaches. Not here: the clock.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from policies.fleet import Fleet, Report
from policies.runs import agreeing_blocks
from policies.types import Replica, Request
from sim.kv_cache import Event, Removed, Stored
from sim.timed import TimedReplica


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


class Book:
    """The fleet as the router believes it, beside the replicas as they are."""

    def __init__(self, belief: Belief, engines: Sequence[TimedReplica], block_tokens: int, seed: int) -> None:
        self.belief = belief
        self.fleet = Fleet(block_tokens)
        self._engines = engines
        self._luck = [random.Random(f"events lost {seed} {place}") for place in range(len(engines))]
        self._coming: dict[str, dict[str, tuple[bytes, ...]]] = {engine.name: {} for engine in engines}
        """By replica and request, the blocks of prompts on their way."""
        for engine in engines:
            factor = belief.capacity_factor
            capacity = None if factor is None else max(1, round(engine.cache.usable_blocks * factor))
            self.fleet.joined(engine.name, capacity_blocks=capacity)

    def view(self, request: Request, now_s: float) -> tuple[Replica, ...]:
        """The replicas as a policy sees them."""
        seen = self.fleet.view(request, now_s)
        if self.belief.source != "truth":
            return seen
        return tuple(
            replace(replica, matched_blocks=self._truly_matched(request.blocks, engine))
            for replica, engine in zip(seen, self._engines, strict=True)
        )

    def _truly_matched(self, blocks: tuple[bytes, ...], engine: TimedReplica) -> int:
        """Leading blocks that are in a replica's cache, or will be by prompts that were sent there before."""
        coming = max((agreeing_blocks(blocks, other) for other in self._coming[engine.name].values()), default=0)
        return max(coming, engine.cache.matched_blocks(blocks, len(blocks)))

    def sent(self, request: Request, chosen: Replica) -> Request:
        """The request is on its way; what the fleet was told of it, to be told again when it ends.

        Without speculative entries the fleet hears of no block that it does not believe to be there already.
        """
        if not self.belief.speculative:
            request = replace(request, blocks=request.blocks[: chosen.matched_blocks])
        self.fleet.sent(request, chosen.name)
        self._coming[chosen.name][request.id] = request.blocks
        return request

    def first_token(self, told: Request, place: int) -> None:
        """The prompt is computed."""
        self.fleet.first_token(told)
        del self._coming[self._engines[place].name][told.id]

    def done(self, told: Request, keys: tuple[bytes, ...], hittable: int, cached_tokens: int) -> None:
        """The request has ended. `keys` are all of its blocks, the first `hittable` those of its prompt."""
        if self.belief.corrected:
            self.fleet.delivered(told, cached_tokens)
        start = len(told.blocks)
        stop = len(keys) if self.belief.knows_answers else hittable
        self.fleet.done(told, keys[start:stop])

    def lost(self, place: int) -> bool:
        """Whether the next message of this replica gets lost."""
        return self.belief.lost_fraction > 0 and self._luck[place].random() < self.belief.lost_fraction

    def told(self, place: int, events: Sequence[Event]) -> None:
        """A message of cache events reached the router."""
        name = self._engines[place].name
        for event in events:
            if isinstance(event, Stored):
                self.fleet.stored(name, event.keys, event.parent)
            elif isinstance(event, Removed):
                self.fleet.removed(name, (event.key,))
            else:
                self.fleet.cleared(name)

    def reported(self, place: int, now_s: float) -> None:
        """A replica said how it is."""
        engine = self._engines[place]
        report = Report(engine.running, engine.waiting, engine.kv_used_fraction)
        self.fleet.reported(engine.name, report, now_s)
