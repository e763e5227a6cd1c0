"""What several rules reckon with: the tokens a replica would have to compute, and the cheapest replica.

The one rule: equals are drawn among, so no replica is a favourite by its place in the list. Not here: what a rule adds
up, and the default policy's cost.
"""

import random
from collections.abc import Sequence

from policies.types import Replica, Request


def uncached_tokens(request: Request, replica: Replica) -> int:
    """Prompt tokens that are probably not in this replica's cache."""
    return max(0, request.prompt_tokens - replica.matched_blocks * request.block_tokens)


def backlog_tokens(request: Request, replica: Replica) -> int:
    """Uncached prompt tokens this replica would have before it with the request: those that wait and its own."""
    return replica.pending_prefill_tokens + uncached_tokens(request, replica)


def cheapest(replicas: Sequence[Replica], costs: Sequence[float], dice: random.Random) -> tuple[Replica, bool]:
    """A replica of the least cost, drawn from `dice` if several cost the same, and whether it was drawn."""
    least = min(costs)
    if costs.count(least) == 1:
        return replicas[costs.index(least)], False
    best = [replica for replica, cost in zip(replicas, costs, strict=True) if cost == least]
    return dice.choice(best), True
