"""One user, one replica: consistent hashing with bounded loads.

A user's replica is its place on a ring of hashes (uhashring), so adding or losing a replica moves few users. Loads are
bounded (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018): a replica with more than
`bound` times its share of the requests in flight is passed over for the next one on the ring. A request without a user
goes by load.
"""

import math
from collections.abc import Iterator, Sequence

from uhashring import HashRing

from policies.least_loaded import LeastLoaded
from policies.types import Choice, Replica, Request

_POINTS = 160
"""Places on the ring for a replica of weight 1."""
_SWEEP_CHOICES = 4096
"""A replica not offered in this many choices loses its place on the ring."""


class UserHash:
    """Keep each user on one replica, whatever the prompts share.

    `bound`: how much more than its share of requests in flight a replica may have before its users spill to the next.
    `least_bound`: requests in flight below which a replica never spills; with many replicas a share is tiny.
    """

    def __init__(self, *, bound: float = 1.25, least_bound: int = 8, seed: int = 0) -> None:
        self._bound = bound
        self._least_bound = least_bound
        self._by_load = LeastLoaded(seed=seed)
        self._ring: HashRing | None = None
        self._weights: dict[str, float] = {}
        self._seen: set[str] = set()
        self._choices = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        if request.user is None:
            return self._by_load.choose(request, replicas)
        offered = {replica.name: replica for replica in replicas}
        weight = sum(replica.weight for replica in replicas)
        total = 1 + sum(replica.in_flight for replica in replicas)
        passed = 0
        for name in self._onward(request.user, replicas):
            if name not in offered:  # it was tried before, or is closed for now: its users go to the next
                continue
            share = total * offered[name].weight / weight
            if offered[name].in_flight < max(self._least_bound, math.ceil(self._bound * share)):
                return Choice(name, "spill" if passed else "user")
            passed += 1
        return self._by_load.choose(request, replicas)

    def _onward(self, user: str, replicas: Sequence[Replica]) -> Iterator[str]:
        """The replicas on the ring from the user's place onward, once each."""
        ring = self._ring_with(replicas)
        for node in ring.range(ascii(user), size=len(self._weights), unique=True):
            yield node["nodename"]

    def _ring_with(self, replicas: Sequence[Replica]) -> HashRing:
        """The ring, on which a replica stays through retries and closures; it goes when long unseen."""
        self._choices += 1
        self._seen.update(replica.name for replica in replicas)
        sweep = self._choices % _SWEEP_CHOICES == 0
        kept = self._weights
        if sweep:
            kept = {name: weight for name, weight in kept.items() if name in self._seen}
            self._seen.clear()
        weights = {**kept, **{replica.name: replica.weight for replica in replicas}}
        if self._ring is None or weights != self._weights:
            self._weights = weights
            tenths = {name: {"weight": max(1, round(10 * weight))} for name, weight in weights.items()}
            self._ring = HashRing(nodes=tenths, vnodes=_POINTS // 10)
        return self._ring
