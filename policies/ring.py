"""Consistent hashing (uhashring): from a key to the replicas in an order of its own, which a newcomer barely changes.

The one rule: a replica keeps its places on the ring while it is out of view, so its keys return with it. It loses them
when no view of many choices held it. Not here: what the key is, and when a replica is passed over.
"""

from collections.abc import Iterator, Sequence

from uhashring import HashRing

from policies.roster import Roster


class Ring:
    """Replicas by name, each at `points` places."""

    def __init__(self, points: int) -> None:
        self._points = points
        self._roster: Roster[None] = Roster(lambda _: None)
        self._changes = 0
        self._ring: HashRing | None = None

    def onward(self, key: str, names: Sequence[str]) -> Iterator[str]:
        """Those of `names`, the view of one choice, from the key's place onward, once each."""
        self._roster.offered(names)
        if self._ring is None or self._changes != self._roster.changes:
            self._changes = self._roster.changes
            self._ring = HashRing(nodes=self._roster.names, vnodes=self._points)
        return self._from(key, frozenset(names), self._ring)

    def _from(self, key: str, offered: frozenset[str], ring: HashRing) -> Iterator[str]:
        first = ring.get_node(key)  # nearly always the only one that is asked for, and cheap
        if first in offered:
            yield first
        for node in ring.range(key, size=len(self._roster)):
            name = node["nodename"]
            if name != first and name in offered:
                yield name
