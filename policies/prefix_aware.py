"""Longest-prefix affinity with load fallback, reasoned in work: the default policy.

    cost       (waiting + price x uncached) / weight; the least one wins
    waiting    pending uncached prompt tokens + `in_flight_tokens` x requests in flight
    uncached   private + full x (shared - scarce), in tokens: what only its own conversation can use again counts whole;
               a head that many prompts continue by how full the cache is; copies that it is short of are an investment
    price      k + full + 4 x crowd + 2 x waiting / prompt tokens
    k          1 + 1 / (1 - pinned), pinned = the share of the KV pool that running requests hold, at most 0.9
    crowd      (requests in flight + 1) / (their mean over the replicas + 1)

What is recomputed costs more than its own time: it evicts (full), delays those already there (crowd), and where prompts
queue, capacity is short (waiting): so the longer queues are, the more waits a warm prompt; and long prompts keep off
replicas with many requests, which leaves these to short ones. A shared head is paid once per replica, then helps all:
where there is room it must not attract (naive longest-prefix sends every new user to the first replica that saw the
system prompt). Decoding requests count, or new users pile onto one replica. `bench/against_the_field.py` compares.
"""

# ruff: noqa: FURB136 -- max() and min() cost more than what they compare, for every replica of every request

import random
from collections.abc import Sequence

from policies.types import Choice, Replica, Request

_MOST_PINNED = 0.9
_CROWD = 4.0  # 2 leaves more short prompts waiting behind long ones, 8 makes long ones wait for all others
_QUEUE = 2.0  # without it prompts leave warm replicas when all have queues; 1 to 4 are alike
_LEAST_FULLNESS = 0.02  # an empty cache still has to compute the head once; any value up to 0.1 measured the same
_UNKNOWN_FULLNESS = 0.16  # for shared heads on a replica of unknown size: .05 to 1 measured the same


class PrefixAware:
    """Go where the prefix probably is, unless waiting there costs more than recomputing elsewhere.

    `in_flight_tokens`: what one request in flight counts for beside its prefill, in prompt tokens (16 to 256 work).
    `stickiness`: the part `k` of what recomputing a token counts for; unset, it follows how full the KV pool is.
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
        count = len(replicas)
        crowd = _CROWD * count / (sum([replica.in_flight for replica in replicas]) + count)
        queue = _QUEUE / (prompt_tokens or 1)
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
            price = k + full + crowd * (replica.in_flight + 1) + queue * waiting
            costs.append((waiting + price * uncached) / replica.weight)
        return costs
