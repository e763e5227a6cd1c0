"""A second policy that decides beside the live one, to learn what it would change before it may.

It gets the same request and the same view, in the same order, a moment after the request was sent; nothing follows
from what it says. Its costs are predictions on the live policy's caches: a policy that would have placed earlier
prompts elsewhere would by now meet other ones. The one rule: its trouble is counted, and never a request's.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from policies.types import Policy, Replica
from router.families import Built, Labels, added, counter
from router.metrics import OTHER
from router.placing import Placed

_log = logging.getLogger("router.shadow")

LIVE, SHADOW = "live", "shadow"

Later = Callable[..., Any]
"""Calls a function with arguments soon, but not now: an event loop's `call_soon`."""


class Shadow:
    """Told of every first choice of a request; counts by route where the two policies part."""

    def __init__(self, name: str, policy: Policy, routes: Iterable[str], later: Later) -> None:
        self._name = name
        self._policy = policy
        self._routes = {route: route for route in routes}
        self._later = later
        self._choices: dict[Labels, int] = {}
        self._tokens: dict[Labels, int] = {}
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Shadow {self._name}: {sum(self._choices.values())} choices, {self._failures} failures>"

    def placed(self, placed: Placed) -> None:
        """The live policy has chosen. What it costs to ask the other one, this request does not wait for."""
        self._later(self._beside, placed)

    def _beside(self, placed: Placed) -> None:
        try:
            other = self._chosen(placed)
        except Exception:
            self._failed("failed", exc_info=True)
            return
        if other is None:
            self._failed("chose a replica that was not offered")
            return
        chosen = placed.chosen
        route = self._routes.get(placed.request.route, OTHER)
        added(self._choices, (route, "yes" if other.name == chosen.name else "no"), 1)
        added(self._tokens, (route, LIVE), _computed(placed, chosen))
        added(self._tokens, (route, SHADOW), _computed(placed, other))

    def _chosen(self, placed: Placed) -> Replica | None:
        choice: object = self._policy.choose(placed.request, placed.view)
        name = choice if isinstance(choice, str) else getattr(choice, "replica", None)
        return next((replica for replica in placed.view if replica.name == name), None)

    def _failed(self, said: str, *, exc_info: bool = False) -> None:
        """One line for the first, second, fourth, … time: a policy that always fails must not flood the log."""
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            told = "the shadow policy %s %s (failure %d); the live one is not touched"
            _log.warning(told, self._name, said, self._failures, exc_info=exc_info)

    def collect(self) -> Iterator[Built]:
        yield counter("router_shadow_choices_total", self._choices.items())
        yield counter("router_shadow_tokens_total", self._tokens.items())
        yield counter("router_shadow_failures_total", [((), self._failures)])


def _computed(placed: Placed, replica: Replica) -> int:
    """Prompt tokens that this replica would probably have to compute."""
    return max(0, placed.request.prompt_tokens - replica.matched_blocks * placed.request.block_tokens)
