"""Each replica in turn: the baseline every other policy is measured against.

It knows neither load nor prefixes, so the hit rate is divided by the number of replicas.
"""

from collections.abc import Sequence

from policies.types import Choice, Replica, Request


class RoundRobin:
    """Take the replicas in turn, whatever they hold or do."""

    uses_prefixes = False

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:  # noqa: ARG002 -- that is the point
        chosen = replicas[self._turn % len(replicas)]
        self._turn += 1
        return Choice(chosen.name, "turn")
