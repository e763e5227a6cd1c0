"""One user, one replica: consistent hashing with bounded loads.

A user's replica is its place on a ketama ring (uhashring), so adding or losing a replica moves few users. Loads are
bounded (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018): a replica with more than
`bound` times its share of the requests in flight is passed over for the next one on the ring. A request without a user
goes by load.
"""

import math
from collections.abc import Sequence

from uhashring import HashRing

from policies.least_loaded import LeastLoaded
from policies.types import Choice, Replica, Request


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

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        if request.user is None:
            return self._by_load.choose(request, replicas)
        offered = {replica.name: replica for replica in replicas}
        weight = sum(replica.weight for replica in replicas)
        total = 1 + sum(replica.in_flight for replica in replicas)
        order = [name for name in self._order(request.user, replicas) if name in offered]
        for position, name in enumerate(order):
            share = total * offered[name].weight / weight
            if offered[name].in_flight < max(self._least_bound, math.ceil(self._bound * share)):
                return Choice(name, "user" if position == 0 else "spill")
        return self._by_load.choose(request, replicas)

    def _order(self, user: str, replicas: Sequence[Replica]) -> list[str]:
        """The replicas from the user's place on the ring onward. A retry's missing replica stays on the ring."""
        present = {replica.name: replica.weight for replica in replicas}
        known = self._weights
        grown = any(known.get(name) != weight for name, weight in present.items())
        if self._ring is None or grown or len(known) > 2 * len(present) + 8:
            self._weights = {**known, **present} if len(known) <= 2 * len(present) + 8 else present
            nodes = {name: {"weight": max(1, round(10 * weight))} for name, weight in self._weights.items()}
            self._ring = HashRing(nodes=nodes)
        return [node["nodename"] for node in self._ring.range(user, size=len(self._weights), unique=True)]
