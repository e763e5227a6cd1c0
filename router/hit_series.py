"""The hit rates of `/hits` for Prometheus: per route as `route_by` says, tenant and replica.

The one rule: what is read is read when somebody scrapes, so a request costs nothing here; and at most so many rows have
series of their own, the largest first, all others being `other` for good: a counter must not go back. Not here: the
counting (`hits`).
"""

from collections.abc import Iterator
from heapq import nlargest

from prometheus_client.registry import Collector

from router.families import Built, Labels, added, counter
from router.hits import Hits, Where
from router.metrics import OTHER

ROWS = 1000
"""Rows that have series of their own."""

_KINDS = ("prompt", "available", "predicted", "reported", "delivered")


class HitSeries(Collector):
    """Reads the hit rates when scraped."""

    def __init__(self, hits: Hits, *, rows: int = ROWS) -> None:
        self._hits = hits
        self._most = rows
        self._labels: dict[Where, Labels] = {}

    def __repr__(self) -> str:
        return f"<HitSeries of {len(self._labels)} rows>"

    def collect(self) -> Iterator[Built]:
        self._named()
        requests: dict[Labels, int] = {}
        tokens: dict[Labels, int] = {}
        for where, row in self._hits.rows().items():
            label = self._labels[where]
            added(requests, label, row.requests)
            sums = (row.prompt, row.available, row.predicted, row.reported_prompt, row.delivered)
            for kind, amount in zip(_KINDS, sums, strict=True):
                added(tokens, (*label, kind), amount)
        yield counter("router_hit_requests_total", requests.items())
        yield counter("router_hit_tokens_total", tokens.items())

    def _named(self) -> None:
        """Labels for rows that have come since the last time; those of replicas that have left are forgotten."""
        rows = self._hits.rows()
        self._labels = {where: label for where, label in self._labels.items() if where in rows}
        room = self._most - sum(where == label for where, label in self._labels.items())
        come = [where for where in rows if where not in self._labels]
        for where in nlargest(room, come, key=lambda where: rows[where].prompt):
            self._labels[where] = where
        for where in come:
            self._labels.setdefault(where, (OTHER, OTHER, where[2]))
