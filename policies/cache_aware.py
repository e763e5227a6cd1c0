"""SGLang's rule: the longest match if it is long enough, else the fewest requests; and fewest while loads are uneven.

    uneven   most - fewest in flight > `balance_abs_threshold`, and most > `balance_rel_threshold` x fewest
    match    matched share of the prompt on the best replica > `cache_threshold`

`cache_aware` of sgl-model-gateway (`src/policies/cache_aware.rs`, commit 053b63f) and vllm-router 0.1.17, with the
defaults of the latter's library and of SMG 1.13; vllm-router's command line sets 0.3, 64 and 1.5. A miss once went to
the smallest tree; since SGLang PR 14650 it goes to the fewest requests. Differences: they match characters in a tree
of their own, here tokens in the router's index; among equal matches the tree names one worker, here it is the fewest
requests; among equal loads they take the first in the list, here one is drawn.
Known weakness: the guard looks at the whole fleet, so one loaded replica suspends affinity for every request.
"""

import random
from collections.abc import Sequence

from policies.costs import cheapest
from policies.types import Choice, Replica, Request


class CacheAware:
    """Go to the longest match if it is long enough and loads are even, else where fewest requests are in flight.

    `cache_threshold`: share of the prompt that must match.
    `balance_abs_threshold`, `balance_rel_threshold`: loads are uneven when both are exceeded.
    """

    def __init__(
        self,
        *,
        cache_threshold: float = 0.5,
        balance_abs_threshold: int = 32,
        balance_rel_threshold: float = 1.1,
        seed: int = 0,
    ) -> None:
        self._cache_threshold = cache_threshold
        self._balance_abs_threshold = balance_abs_threshold
        self._balance_rel_threshold = balance_rel_threshold
        self._dice = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """Reasons: `only`, `uneven` (the guard), `prefix` (the match), `load` (a miss)."""
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        if self._uneven(replicas):
            return self._fewest(replicas, "uneven")
        longest = max(replica.matched_blocks for replica in replicas)
        if longest * request.block_tokens > self._cache_threshold * request.prompt_tokens:
            return self._fewest([replica for replica in replicas if replica.matched_blocks == longest], "prefix")
        return self._fewest(replicas, "load")

    def _uneven(self, replicas: Sequence[Replica]) -> bool:
        loads = [replica.in_flight for replica in replicas]
        most, fewest = max(loads), min(loads)
        return most - fewest > self._balance_abs_threshold and most > self._balance_rel_threshold * fewest

    def _fewest(self, replicas: Sequence[Replica], reason: str) -> Choice:
        chosen, _ = cheapest(replicas, [replica.in_flight for replica in replicas], self._dice)
        return Choice(chosen.name, reason)
