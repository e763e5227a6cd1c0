"""How much of one turn of the event loop requests may take to be read, when many arrive together.

Reading a prompt holds the loop for a millisecond or so; sixty-four that came in one turn would hold up every stream
and every probe for the sum. The one rule: nobody waits while the turn is not used up, and then only for the next one,
in the order in which they came. Not here: prompts that are too long for the loop at all (`prompts`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.01


class Turns:
    """The present turn of the loop, as far as reading goes."""

    __slots__ = ("_clock", "_until_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until_s: float | None = None

    def __repr__(self) -> str:
        return f"<Turns of {TURN_S:g} s>"

    @property
    def over(self) -> bool:
        """Whether reading has had its share of this turn; the first to ask begins it."""
        if self._until_s is None:
            asyncio.get_running_loop().call_soon(self._ended)
            self._until_s = self._clock() + TURN_S
            return False
        return self._clock() >= self._until_s

    async def next(self) -> None:
        """Return in a turn that has time left."""
        while self.over:  # noqa: ASYNC110 -- the loop itself is what is waited for
            await asyncio.sleep(0)

    def _ended(self) -> None:
        self._until_s = None
