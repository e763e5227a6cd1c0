"""The replica with the least work before it: for traffic without common prefixes.

Work is uncached prompt tokens that wait plus a constant for each request in flight, over the replica's weight. The
count of requests alone hides their size: one prompt of 100,000 tokens is not one of 50.
"""

import random
from collections.abc import Sequence

from policies.types import Choice, Replica, Request


def work_tokens(replica: Replica, in_flight_tokens: float) -> float:
    """Work that stands before a new request on this replica, in prompt tokens of a replica of weight 1."""
    return (replica.pending_prefill_tokens + in_flight_tokens * replica.in_flight) / replica.weight


class LeastLoaded:
    """Go where the least work waits.

    `in_flight_tokens`: what one request in flight counts for beside its prefill, in prompt tokens.
    """

    def __init__(self, *, in_flight_tokens: float = 64.0, seed: int = 0) -> None:
        self._in_flight_tokens = in_flight_tokens
        self._random = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:  # noqa: ARG002 -- load alone decides
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        work = [work_tokens(replica, self._in_flight_tokens) for replica in replicas]
        least = min(work)
        best = [replica for replica, tokens in zip(replicas, work, strict=True) if tokens == least]
        if len(best) == 1:
            return Choice(best[0].name, "load")
        return Choice(self._random.choice(best).name, "tie")
