"""Where cached tokens were lost: what a prompt could have found, did not, and why.

    workload    no replica was believed to hold them
    load        another replica that could be had was believed to hold them, and the policy left it for its load
    routing     a warmer replica was not chosen for another reason: closed, failed, set aside, or a policy that is blind
    stale       predicted on the chosen replica, which did not deliver them
    unreadable  prompts whose blocks are not known or that can't read the cache; they spoil no rate

The one rule: a prompt's tokens are those delivered and those lost, less those delivered beyond the prediction, which
are counted too. Only requests that were answered count. Not here: the sums themselves per route (`metrics`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from policies.fleet import Fleet
from router.families import Built, Labels, added, counter, folded
from router.metrics import OTHER
from router.outcome import Outcome
from router.placing import Placed

_log: Final = logging.getLogger("router.losses")

WORKLOAD, LOAD, ROUTING, STALE, UNREADABLE = "workload", "load", "routing", "stale", "unreadable"

_LABEL_VALUES: Final = 256  # distinct models before the rest are "other"
_QUIET_S: Final = 600.0  # the same complaint again only after this long
_UNWILLING: Final = frozenset(["policy-failed"])  # reasons of choices that no policy made


class Losses:
    """Told of every request that has ended."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Callable[[], float],
        routes: Iterable[str],
        *,
        blind: bool,
        label: Callable[[str], str],
    ) -> None:
        """`label` gives a tenant's label, of a closed set.

        `blind`: the policy looks at no prefix, so it leaves a warm replica by chance and not for its load.
        """
        self._fleet = fleet
        self._routes = {route: route for route in routes}
        self._clock = clock
        self._blind = blind
        self._label = label
        self._names: dict[str, str] = {}
        self._lost: dict[Labels, int] = {}
        self._unpredicted: dict[Labels, int] = {}
        self._mismatches: dict[Labels, int] = {}
        self._complained_s: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Losses {sum(self._lost.values())} tokens, {sum(self._mismatches.values())} mismatches>"

    def answered(self, placed: Placed, outcome: Outcome) -> None:
        """Book a request that has ended."""
        if outcome.status != 200 or outcome.outcome != "ok":
            return
        where = (self._routes.get(outcome.route, OTHER), self._label(placed.request.tenant), outcome.replica)
        if outcome.basis == "none":
            _add(self._lost, (UNREADABLE, *where), outcome.prompt_tokens)
            return
        available, predicted, delivered = outcome.available_tokens, outcome.predicted_tokens, outcome.delivered_tokens
        beyond = self._beyond(placed, available)
        _add(self._lost, (WORKLOAD, *where), outcome.prompt_tokens - available - beyond)
        willing = not self._blind and outcome.reason not in _UNWILLING
        _add(self._lost, (LOAD if willing else ROUTING, *where), available - predicted)
        _add(self._lost, (ROUTING, *where), beyond)
        if delivered is not None:
            _add(self._lost, (STALE, *where), predicted - delivered)
            _add(self._unpredicted, where, delivered - predicted)
        if outcome.basis == "exact" and outcome.prompt_tokens != placed.request.prompt_tokens:
            self._mismatched(placed, outcome)

    def forgotten(self, replica: str) -> None:
        """The replica has left for good: what was counted of it goes on as `other`."""
        for counts in (self._lost, self._unpredicted, self._mismatches):
            folded(counts, -1, replica, OTHER)

    def collect(self) -> Iterator[Built]:
        yield counter("router_lost_tokens_total", self._lost.items())
        yield counter("router_unpredicted_tokens_total", self._unpredicted.items())
        yield counter("router_token_mismatch_total", self._mismatches.items())

    def _beyond(self, placed: Placed, available_tokens: int) -> int:
        """Tokens that only replicas out of the view were believed to hold."""
        warmest = self._fleet.warmest(placed.request, placed.view)
        return max(0, warmest * placed.request.block_tokens - available_tokens)

    def _mismatched(self, placed: Placed, outcome: Outcome) -> None:
        """The engine counted other prompt tokens than the router: predictions for such prompts can't be trusted."""
        model = self._name(outcome.model)
        _add(self._mismatches, (model, outcome.replica), 1)
        now_s, said_s = self._clock(), self._complained_s.get(model)
        if said_s is not None and now_s - said_s < _QUIET_S:
            return
        self._complained_s[model] = now_s
        _log.warning(
            "replica %s counted %d prompt tokens of %s on %s where the router counted %d (%d such requests so far):"
            " its template or tokenizer differs; run router check, and see --tokenizer",
            outcome.replica,
            outcome.prompt_tokens,
            model or "any model",
            outcome.route,
            placed.request.prompt_tokens,
            sum(count for (name, _), count in self._mismatches.items() if name == model),
        )

    def _name(self, name: str) -> str:
        """A model's label: only so many names become one."""
        known = self._names.get(name)
        if known is not None:
            return known
        if len(self._names) >= _LABEL_VALUES:
            return OTHER
        return self._names.setdefault(name, name)


def _add(counts: dict[Labels, int], key: Labels, amount: int) -> None:
    if amount > 0:
        added(counts, key, amount)
