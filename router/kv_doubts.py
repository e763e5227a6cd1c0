"""Notices that an engine has nothing of what its events told: its cache was emptied, and no event said so.

vLLM tells of a reset with its next step, so this is for events that were lost or never made. The one rule: only what
engines report of requests counts, three one after the other without a single cached token that was predicted; one
cached token clears an engine of it. A request proves nothing that was on its way while an earlier one proved something,
for both were placed by the same belief, nor one in whose time the engine told of blocks it gave up: perhaps these. Not
here: what follows (`kv_feed`).
"""

import math
from collections.abc import Callable

from router.outcome import Outcome
from router.placing import Placed

LEAST_TOKENS = 8
_IN_A_ROW = 3


class Doubts:
    """Told of every request that has ended."""

    def __init__(
        self, disbelieved: Callable[[str], None], removed_s: Callable[[str], float], clock: Callable[[], float]
    ) -> None:
        """`disbelieved` is told the name of a replica whose events can't be believed.

        `removed_s` tells when, by `clock`, a replica last told of a block that it gave up; -inf for never.
        """
        self._disbelieved = disbelieved
        self._removed_s = removed_s
        self._clock = clock
        self._misses: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        """When the last request ended that counted."""

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
        if now_s - outcome.duration_s <= max(self._since_s.get(name, -math.inf), self._removed_s(name)):
            return
        self._since_s[name] = now_s
        misses = self._misses[name] = self._misses.get(name, 0) + 1
        if misses >= _IN_A_ROW:
            del self._misses[name]
            self._disbelieved(name)
