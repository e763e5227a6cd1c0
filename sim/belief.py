"""What the router knows in virtual time: its fleet's book, told only what a router would be told, and as late.

The one rule: the truth is in the replicas, and nothing of it gets here but by the ways of `Belief`: what was sent
where, the engine's cache events after a lag and with losses, and the replicas' reports at their interval. The one
exception says so in its name, `truth`: the bound that a policy with a perfect index reaches. Not here: the clock.
"""

import random
from collections.abc import Sequence

from msgspec.structs import replace

from policies.agreement import agreeing_blocks
from policies.fleet import Fleet, Report
from policies.types import Replica, Request
from sim.cache_events import Event, Removed, Stored
from sim.setup import Belief
from sim.timed import TimedReplica


class Book:
    """The fleet as the router believes it, beside the replicas as they are."""

    def __init__(self, belief: Belief, engines: Sequence[TimedReplica], block_tokens: int, seed: int) -> None:
        self.belief = belief
        self.fleet = Fleet(block_tokens)
        self._engines = engines
        self._luck = [random.Random(f"events lost {seed} {place}") for place in range(len(engines))]
        self._coming: dict[str, dict[str, Sequence[bytes]]] = {engine.name: {} for engine in engines}
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

    def _truly_matched(self, blocks: Sequence[bytes], engine: TimedReplica) -> int:
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
