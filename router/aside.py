"""Replicas that are passed over for the moment, as long as others are left.

A replica stands aside after it failed a request or said it is busy, while it is silent, and, when it is back on trial,
while it has the one request that tries it. The one rule: this never makes a request fail; with nobody else left, who
stands aside is chosen all the same. Not here: replicas that are out (`hysteresis`).
"""

from collections.abc import Callable, Collection, Set
from typing import Final

FAILED_S: Final = 0.5
"""How long a replica that failed a request is no longer the favourite of the next."""
BUSY_S: Final = 0.25
LONGEST_BUSY_S: Final = 5.0
"""A Retry-After is meant for clients; a router soon sees by itself whether there is room again."""

_NOBODY: Final[frozenset[str]] = frozenset()


class Aside:
    """Who stands aside, and until when."""

    __slots__ = ("_before_trial", "_in_flight", "_silent", "_trials", "_until_s")

    def __init__(self, trials: Collection[str], in_flight: Callable[[str], int]) -> None:
        """`trials` are the replicas on trial at any time, `in_flight` says how many requests one has."""
        self._trials = trials
        self._in_flight = in_flight
        self._before_trial: dict[str, int] = {}
        self._until_s: dict[str, float] = {}
        self._silent: set[str] = set()

    def __repr__(self) -> str:
        return f"<Aside {' '.join(sorted({*self._until_s, *self._silent, *self._before_trial})) or 'nobody'}>"

    def rehearsal(self) -> "Aside":
        """A twin for dry runs: it knows what this one knows, and a replica on trial stays as it is."""
        twin = Aside(self._trials, self._in_flight)
        twin._before_trial, twin._until_s, twin._silent = self._before_trial, self._until_s, self._silent
        return twin

    def failed(self, name: str, now_s: float) -> None:
        self._hold(name, now_s + FAILED_S)

    def busy(self, name: str, now_s: float, retry_after_s: float | None = None) -> None:
        """The replica answered 429 or 503, perhaps with a Retry-After."""
        self._hold(name, now_s + (BUSY_S if retry_after_s is None else min(retry_after_s, LONGEST_BUSY_S)))

    def silent(self, name: str) -> None:
        """The replica says nothing though requests wait for it; until `heard`."""
        self._silent.add(name)

    def heard(self, name: str) -> None:
        self._silent.discard(name)

    def names(self, now_s: float) -> Set[str]:
        """Who stands aside now; nearly always nobody, and then this costs next to nothing."""
        trials = self._trials
        if not (self._until_s or self._silent or trials or self._before_trial):
            return _NOBODY
        for name, until_s in list(self._until_s.items()):
            if until_s <= now_s:
                del self._until_s[name]
        self._before_trial = {name: self._before_trial.get(name, self._in_flight(name)) for name in trials}
        tried = {name for name, before in self._before_trial.items() if self._in_flight(name) > before}
        return self._silent | self._until_s.keys() | tried

    def _hold(self, name: str, until_s: float) -> None:
        self._until_s[name] = max(until_s, self._until_s.get(name, 0.0))
