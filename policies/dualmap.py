"""DualMap: a prompt's prefix hashes to two replicas; the warmer takes it while it can keep the promised time.

    key        the first steps of `step_tokens`, the fewest that are not hot: a prefix is hot when more than
               2 / replicas of the last `window_requests` requests begin with it
    pair       the first replica from the key's place, twice, by two hashes
    backlog    pending uncached tokens + uncached tokens of this prompt
    choice     the longer match of the pair, unless its backlog exceeds `budget_tokens`; then, or when both match alike,
               the lesser backlog

Yuan et al., "DualMap" (ICLR 2026, arXiv 2602.06502) with the settings of the authors' README (ASISys/DualMap): blocks
of 128 tokens; TTFT within 5 s at 0.16 ms a token = 31,250 tokens. The window of 200 is AIBrix's (`dualmap.go`, commit
9c8981e). Differences: requests that wait are not moved within their pair, for the engine holds the queue; every step of
a prompt is counted, up to 512, in place of a tree that splits and merges; no blocks: least backlog of all.
"""

import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

from policies.costs import backlog_tokens, cheapest
from policies.ring import Ring
from policies.types import Choice, Replica, Request

_POINTS = 100
_MOST_STEPS = 512


class DualMap:
    """Hash a prompt's prefix to two replicas and take the warmer one that keeps the time to first token.

    `step_tokens`: by how much a hot prefix is lengthened, in whole blocks.
    `budget_tokens`: uncached tokens a replica can compute within the time to first token that is promised.
    `window_requests`: over how many requests it is counted what is hot.
    """

    def __init__(
        self, *, step_tokens: int = 128, budget_tokens: int = 31_250, window_requests: int = 200, seed: int = 0
    ) -> None:
        self._step_tokens = step_tokens
        self._budget_tokens = budget_tokens
        self._popularity = Popularity(window_requests)
        self._ring = Ring(_POINTS)
        self._dice = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """Reasons: `only`, `prefix`, `load` (equal matches, or no blocks), `budget` (the warmer one is too slow)."""
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        if not request.blocks:
            return self._least(request, replicas, "load")
        pair = self._pair(self._key(request, len(replicas)), replicas)
        one, other = pair
        if one.matched_blocks == other.matched_blocks:
            return self._least(request, pair, "load")
        warmer = one if one.matched_blocks > other.matched_blocks else other
        if backlog_tokens(request, warmer) > self._budget_tokens:
            return self._least(request, pair, "budget")
        return Choice(warmer.name, "prefix")

    def _least(self, request: Request, replicas: Sequence[Replica], reason: str) -> Choice:
        backlogs = [backlog_tokens(request, replica) for replica in replicas]
        return Choice(cheapest(replicas, backlogs, self._dice)[0].name, reason)

    def _key(self, request: Request, replicas: int) -> bytes:
        step = max(1, self._step_tokens // request.block_tokens)
        prefixes = request.blocks[step - 1 :: step] or request.blocks[-1:]
        return self._popularity.not_hot(prefixes[:_MOST_STEPS], 2 / replicas)

    def _pair(self, key: bytes, replicas: Sequence[Replica]) -> tuple[Replica, Replica]:
        named = {replica.name: replica for replica in replicas}
        names = list(named)
        first = next(self._ring.onward(f"1{key.hex()}", names))
        second = next(name for name in self._ring.onward(f"2{key.hex()}", names) if name != first)
        return named[first], named[second]


class Popularity:
    """Which prefixes many of the last requests began with."""

    def __init__(self, window_requests: int) -> None:
        self._window_requests = window_requests
        self._counts: Counter[bytes] = Counter()
        self._requests: deque[Sequence[bytes]] = deque()

    def __len__(self) -> int:
        return len(self._counts)

    def not_hot(self, prefixes: Sequence[bytes], hot_share: float) -> bytes:
        """Count a request with these ever longer prefixes; return the shortest that is not hot, or the longest."""
        counts = self._counts
        counts.update(prefixes)
        self._requests.append(prefixes)
        if len(self._requests) > self._window_requests:
            self._forget(self._requests.popleft())
        most = hot_share * len(self._requests)
        # a longer prefix is never more frequent than a shorter one
        depth = bisect_left(prefixes, True, key=lambda prefix: counts[prefix] <= most)
        return prefixes[min(depth, len(prefixes) - 1)]

    def _forget(self, prefixes: Sequence[bytes]) -> None:
        for prefix in prefixes:
            if self._counts[prefix] == 1:
                del self._counts[prefix]
            else:
                self._counts[prefix] -= 1
