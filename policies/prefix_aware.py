"""Longest-prefix affinity with load fallback, reasoned in work: the default policy.

    waiting    (pending uncached prompt tokens + `in_flight_tokens` x requests in flight) / weight
    private    uncached tokens of this prompt that only its own conversation can use again
    shared     uncached tokens of its leading blocks that many different prompts continue (a system prompt, tools)
    scarce     those of them with fewer copies than their share of all prompts deserves: one more copy is an investment
    full       share of the cache that is held, 0 to 1: new blocks evict only from a full one
    cost       waiting + (k + full) x (private + full x (shared - scarce)) / weight
    k          1 + 1 / (1 - pinned), pinned = the share of the KV pool that running requests hold, at most 0.9

A warm replica is left only when waiting there costs more than computing elsewhere. Why so: recomputing a shared head is
paid once per replica and then helps everybody, so where there is room it must not attract (naive longest-prefix sends
every new user to the first replica that saw the system prompt, whose cache then thrashes while the others stay empty).
Where there is none, one more copy crowds out somebody's blocks; a moved conversation does so always, the more the
fuller the pool. Decoding requests count, or new users pile onto one replica. `bench/compare_policies.py` compares.
"""

# ruff: noqa: FURB136 -- max() and min() cost more than what they compare, for every replica of every request

import random
from collections.abc import Sequence

from policies.types import Choice, Replica, Request

_MOST_PINNED = 0.9
_LEAST_FULLNESS = 0.02  # an empty cache still has to compute the head once; any value up to 0.1 measured the same
_UNKNOWN_FULLNESS = 0.16  # for shared heads on a replica of unknown size: .05 to 1 measured the same


class PrefixAware:
    """Go where the prefix probably is, unless waiting there costs more than recomputing elsewhere.

    `in_flight_tokens`: what one request in flight counts for beside its prefill, in prompt tokens (16 to 256 work).
    `stickiness`: what recomputing a private token counts for; unset, it follows how full the replica's KV pool is.
    """

    def __init__(self, *, in_flight_tokens: float = 64.0, stickiness: float | None = None, seed: int = 0) -> None:
        self._in_flight_tokens = in_flight_tokens
        self._stickiness = stickiness
        self._random = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """The cheapest replica. Reasons: `only`, `prefix` (none is warmer), `load` (work and room decided), `tie`."""
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        costs = self._costs(request, replicas)
        least = min(costs)
        if costs.count(least) == 1:
            chosen, reason = replicas[costs.index(least)], "load"
        else:
            best = [replica for replica, cost in zip(replicas, costs, strict=True) if cost == least]
            chosen, reason = self._random.choice(best), "tie"
        matches = [replica.matched_blocks for replica in replicas]
        return Choice(chosen.name, "prefix" if chosen.matched_blocks == max(matches) > min(matches) else reason)

    def explained(self, request: Request, replicas: Sequence[Replica]) -> dict[str, float]:
        """What each replica would cost this request, in prompt tokens of a replica of weight 1."""
        costs = self._costs(request, replicas)
        return {replica.name: cost for replica, cost in zip(replicas, costs, strict=True)}

    def _costs(self, request: Request, replicas: Sequence[Replica]) -> list[float]:
        """One loop without calls: it runs for every replica and every request."""
        block_tokens, prompt_tokens = request.block_tokens, request.prompt_tokens
        shared = replicas[0].shared_blocks * block_tokens
        scarce = replicas[0].scarce_blocks * block_tokens
        in_flight_tokens, stickiness = self._in_flight_tokens, self._stickiness
        costs = []
        for replica in replicas:
            matched = replica.matched_blocks * block_tokens
            capacity = replica.capacity_blocks
            if not capacity:
                full, room = 1.0, _UNKNOWN_FULLNESS
            else:
                full = replica.held_blocks / capacity if replica.held_blocks < capacity else 1.0
                room = full if full > _LEAST_FULLNESS else _LEAST_FULLNESS
            uncached: float = prompt_tokens - (matched if matched > shared else shared)
            here = matched if matched > scarce else scarce
            if here < shared:
                uncached += room * (shared - here)
            pinned = replica.engine_kv_used_fraction
            if stickiness is not None:
                k = stickiness
            elif not pinned:
                k = 2.0
            else:
                k = 1.0 + 1.0 / (1.0 - (pinned if pinned < _MOST_PINNED else _MOST_PINNED))
            waiting = replica.pending_prefill_tokens + in_flight_tokens * replica.in_flight
            costs.append((waiting + (k + full) * uncached) / replica.weight)
        return costs
