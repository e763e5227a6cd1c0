"""Any replica, by chance: with round robin the floor that every rule must beat.

Memory-less spreading; unlike taking turns it makes queues of chance even for equal requests.
"""

import random
from collections.abc import Sequence

from policies.types import Choice, Replica, Request


class RandomChoice:
    """Draw a replica, each with the same chance."""

    uses_prefixes = False

    def __init__(self, *, seed: int = 0) -> None:
        self._dice = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:  # noqa: ARG002 -- that is the point
        return Choice(self._dice.choice(replicas).name, "chance")
