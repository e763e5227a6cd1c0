"""Longest-prefix affinity with load fallback, reasoned in work: the default policy.

    cost       (waiting + price x uncached) / weight; the least one wins
    waiting    pending uncached prompt tokens + `in_flight_tokens` x requests in flight
    uncached   private + full x (shared - scarce), in tokens: a head that many prompts continue counts by how full the
               cache is; copies that it is short of are an investment
    price      k + 2 x full + 2 x waiting / prompt tokens + crowd
    k          2 + 1 / (1 - pinned), pinned = the share of the KV pool that running requests hold, at most 0.9
    crowd      (1 + 32 x least / (least + T)) x T / (T + uncached) x (requests in flight + 1) / (their mean + 1),
               least = the fewest tokens that wait anywhere, T = 32,768

What is recomputed evicts (full) and delays those behind it; where prompts queue, capacity is short: a warm one waits
longer. When all have queues (least), long prompts keep off crowds, which leaves these to short ones, but not without
bound (T + uncached). A shared head is paid once per replica, then helps all: where there is room it must not attract,
or all new users meet where it was first. Decoding counts, or they pile up. `bench/against_the_field.py` compares.
"""

import random
from collections.abc import Sequence

from policies.prefix_cost import choice_by
from policies.prefix_cost import costs as costs_of
from policies.types import Choice, Replica, Request


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
        return choice_by(self._costs(request, replicas), replicas, self._random)

    def explained(self, request: Request, replicas: Sequence[Replica]) -> dict[str, float]:
        """What each replica would cost this request, in prompt tokens of a replica of weight 1."""
        costs = self._costs(request, replicas)
        return {replica.name: cost for replica, cost in zip(replicas, costs, strict=True)}

    def _costs(self, request: Request, replicas: Sequence[Replica]) -> list[float]:
        return costs_of(request, replicas, self._in_flight_tokens, self._stickiness)
