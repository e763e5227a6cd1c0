"""Longest-prefix affinity with load fallback, reasoned in work: the default policy.

    waiting    (pending uncached prompt tokens + `in_flight_tokens` x requests in flight) / weight
    private    uncached tokens of this prompt that only its own conversation can use again
    shared     uncached tokens of its leading blocks that many different prompts continue (a system prompt, tools)
    scarce     those of them with fewer copies than their share of all prompts deserves: one more copy is an investment
    full       share of the cache that is held, 0 to 1: new blocks evict only from a full one
    cost       waiting + ((k + full) x private + `shared_cost` x full x (shared - scarce)) / weight
    k          1 + 1 / (1 - pinned), pinned = the share of the KV pool that running requests hold, at most 0.9

A warm replica is left only when waiting there costs more than computing elsewhere. Why so: recomputing a shared head is
paid once per replica and then helps everybody, so where there is room it must not attract (naive longest-prefix sends
every new user to the first replica that saw the system prompt, whose cache then thrashes while the others stay empty).
Room is not enough: when a new system prompt comes to caches that are full, or of unknown size, only its scarcity tells.
A moved conversation costs more than its own prefill, since its copy evicts somebody's blocks, the more so the fuller
the pool. Decoding requests count, or new users pile onto one replica. `bench/compare_policies.py` compares.
"""

import random
from collections.abc import Sequence

from policies.least_loaded import work_tokens
from policies.types import Choice, Replica, Request

_MOST_PINNED = 0.9
_LEAST_FULLNESS = 0.02  # an empty cache still has to compute the head once; any value up to 0.1 measured the same


class PrefixAware:
    """Go where the prefix probably is, unless waiting there costs more than recomputing elsewhere.

    `in_flight_tokens`: what one request in flight counts for beside its prefill, in prompt tokens (16 to 256 work).
    `shared_cost`: what recomputing a token of a prefix common to many prompts counts for, 0 to 1.
    `stickiness`: what recomputing a private token counts for; unset, it follows how full the replica's KV pool is.
    """

    def __init__(
        self,
        *,
        in_flight_tokens: float = 64.0,
        shared_cost: float = 0.5,
        stickiness: float | None = None,
        seed: int = 0,
    ) -> None:
        self._in_flight_tokens = in_flight_tokens
        self._shared_cost = shared_cost
        self._stickiness = stickiness
        self._random = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """The cheapest replica. Reasons: `only`, `prefix` (none is warmer), `load` (work and room decided), `tie`."""
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        costs = [self._cost(request, replica) for replica in replicas]
        least = min(costs)
        best = [replica for replica, cost in zip(replicas, costs, strict=True) if cost == least]
        chosen = best[0] if len(best) == 1 else self._random.choice(best)
        matches = [replica.matched_blocks for replica in replicas]
        if chosen.matched_blocks == max(matches) > min(matches):
            return Choice(chosen.name, "prefix")
        return Choice(chosen.name, "load" if len(best) == 1 else "tie")

    def explained(self, request: Request, replicas: Sequence[Replica]) -> dict[str, float]:
        """What each replica would cost this request, in prompt tokens of a replica of weight 1."""
        return {replica.name: self._cost(request, replica) for replica in replicas}

    def _cost(self, request: Request, replica: Replica) -> float:
        matched = replica.matched_blocks * request.block_tokens
        shared = replica.shared_blocks * request.block_tokens
        scarce = replica.scarce_blocks * request.block_tokens
        shared_uncached = max(0, shared - max(matched, scarce))
        private_uncached = request.prompt_tokens - max(matched, shared)
        fullness = _fullness(replica)
        own = (self._private_cost(replica) + fullness) * private_uncached
        own += self._shared_cost * max(fullness, _LEAST_FULLNESS) * shared_uncached
        return work_tokens(replica, self._in_flight_tokens) + own / replica.weight

    def _private_cost(self, replica: Replica) -> float:
        if self._stickiness is not None:
            return self._stickiness
        pinned = replica.engine_kv_used_fraction
        return 1.0 + 1.0 / (1.0 - min(pinned or 0.0, _MOST_PINNED))


def _fullness(replica: Replica) -> float:
    """Share of the cache that new blocks would evict from; a replica of unknown size counts as full."""
    if not replica.capacity_blocks:
        return 1.0
    return min(1.0, replica.held_blocks / replica.capacity_blocks)
