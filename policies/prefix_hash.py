"""A prefix's replica by consistent hashing with bounded loads: no index is asked, only the first tokens count.

    allowed    in flight + 1 <= `bound` x (all in flight + 1) / replicas, or nothing is in flight at all

From the place of the prompt's first tokens on a ring the first replica that is allowed; if none is, the first of all.
`PrefixHash` of KubeAI (`internal/loadbalancer/balance_chwbl.go`, commit 08e69e5) after Mirrokni, Thorup and
Zadimoghaddam (SODA 2018), with its 256 points and 125 %. Differences: KubeAI hashes adapter and first 100 characters
with xxhash; here the key of the first `prefix_tokens` in whole blocks (a key names adapter and salt too) goes through
uhashring's md5. 100 characters are about 25 tokens, two blocks of 16. A prompt without a full block goes by load.
Known weakness: a system prompt that all share is one key, so pick `prefix_tokens` beyond it.
"""

import random
from collections.abc import Sequence

from policies.costs import cheapest
from policies.ring import Ring
from policies.types import Choice, Replica, Request

_POINTS = 256


class PrefixHash:
    """Keep prompts that begin alike on one replica, by hash, and spill to the next when that has more than its share.

    `prefix_tokens`: how many tokens are the beginning, rounded up to blocks; SMG's `prefix_hash` takes 256.
    `bound`: how much more than the mean of requests in flight a replica may have.
    """

    def __init__(self, *, prefix_tokens: int = 32, bound: float = 1.25, seed: int = 0) -> None:
        self._prefix_tokens = prefix_tokens
        self._bound = bound
        self._dice = random.Random(seed)
        self._ring = Ring(_POINTS)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """Reasons: `only`, `prefix` (its place), `spill` (a later one), `full` (none allowed), `load` (no prefix)."""
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        if not request.blocks:
            chosen, _ = cheapest(replicas, [replica.in_flight for replica in replicas], self._dice)
            return Choice(chosen.name, "load")
        in_flight = {replica.name: replica.in_flight for replica in replicas}
        total = sum(in_flight.values())
        most = self._bound * (total + 1) / len(replicas)
        home = ""
        for name in self._ring.onward(self._key(request), list(in_flight)):
            home = home or name
            if not total or in_flight[name] + 1 <= most:
                return Choice(name, "prefix" if name == home else "spill")
        return Choice(home, "full")

    def _key(self, request: Request) -> str:
        blocks = max(1, -(-self._prefix_tokens // request.block_tokens))
        return request.blocks[min(blocks, len(request.blocks)) - 1].hex()
