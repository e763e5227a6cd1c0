"""The power of two choices: of two replicas drawn by chance, the one with fewer requests in flight.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (IEEE TPDS 12(10), 2001): two samples instead of
one bring the fullest queue from about log n to about log log n. As a policy of LLM routers: `power_of_two.rs` of
sgl-model-gateway (commit 065f331), vllm-router 0.1.17, Dynamo 1.6.1. Of equals the first drawn is taken, which is fair
since the draw is. sgl-model-gateway compares reported tokens where both replicas report; here it is always requests in
flight, its fallback, which is known without delay.
"""

import random
from collections.abc import Sequence

from policies.types import Choice, Replica, Request


class PowerOfTwo:
    """Draw two replicas and take the one with fewer requests in flight."""

    uses_prefixes = False

    def __init__(self, *, seed: int = 0) -> None:
        self._dice = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:  # noqa: ARG002 -- load alone decides
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        first = self._dice.randrange(len(replicas))
        second = (first + 1 + self._dice.randrange(len(replicas) - 1)) % len(replicas)
        one, other = replicas[first], replicas[second]
        if other.in_flight < one.in_flight:
            return Choice(other.name, "load")
        return Choice(one.name, "tie" if other.in_flight == one.in_flight else "load")
