"""Notices that an engine has nothing of what its events told: its cache was emptied, and no event said so.

vLLM tells of a reset with its next step, so this is for events that were lost or never made. The one rule: only what
engines report of requests counts, three in a row without a single cached token that was predicted; one cached token
clears an engine of it. Requests that were placed by what was given up then prove nothing more: else a crowd of them
would have it forget again and again what it told since. Not here: what follows (`kv_feed`).
"""

import math
from collections.abc import Callable

from router.metrics import Outcome
from router.placing import Placed

LEAST_TOKENS = 8
_IN_A_ROW = 3


class Doubts:
    """Told of every request that has ended."""

    def __init__(self, disbelieved: Callable[[str], None], clock: Callable[[], float]) -> None:
        """`disbelieved` is told the name of a replica whose events can't be believed."""
        self._disbelieved = disbelieved
        self._clock = clock
        self._misses: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        """When replicas were last disbelieved."""

    def __repr__(self) -> str:
        return f"<Doubts {self._misses}>"

    def forgotten(self, name: str) -> None:
        """The replica has left for good."""
        self._misses.pop(name, None)
        self._since_s.pop(name, None)

    def ended(self, placed: Placed, outcome: Outcome) -> None:
        delivered = outcome.delivered_tokens
        if delivered is None:
            return
        name = outcome.replica
        if delivered:
            if self._misses:
                self._misses.pop(name, None)
            return
        same = outcome.basis == "exact" and outcome.prompt_tokens == placed.request.prompt_tokens
        if not same or outcome.outcome != "ok" or outcome.predicted_tokens < LEAST_TOKENS:
            return
        now_s = self._clock()
        if now_s - outcome.duration_s <= self._since_s.get(name, -math.inf):
            return
        misses = self._misses[name] = self._misses.get(name, 0) + 1
        if misses >= _IN_A_ROW:
            del self._misses[name]
            self._since_s[name] = now_s
            self._disbelieved(name)
