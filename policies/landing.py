"""Prompts computed before their replica's events said so: they stay expected until it says so or had time to.

An engine answers first and publishes the step's events after; a request asked in between would not see what the one
before it left. The one rule: what a replica had a second to tell and did not is not there. Not here: what is expected
(`policies.index`).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from policies.index import PrefixIndex

_PATIENCE_S: Final = 1.0


class Landing:
    """Computed prompts of replicas that tell by events, the earliest first."""

    __slots__ = ("_fresh", "_index", "_waiting")

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._fresh: list[tuple[str, Sequence[bytes]]] = []
        self._waiting: deque[tuple[float, str, Sequence[bytes]]] = deque()

    def __len__(self) -> int:
        return len(self._fresh) + len(self._waiting)

    def computed(self, name: str, blocks: Sequence[bytes]) -> None:
        """The prompt's first token came."""
        if not blocks or self._index.copies(name) is None:
            self._index.computed(name, blocks)
        else:
            self._fresh.append((name, blocks))

    def left(self, name: str) -> None:
        """The replica is gone, and what was expected of it."""
        self._fresh = [one for one in self._fresh if one[0] != name]
        self._waiting = deque(one for one in self._waiting if one[1] != name)

    def looked(self, now_s: float) -> None:
        """Somebody is about to look: settle what is told by now, or overdue. Patience begins with the first look."""
        if self._fresh:
            due_s = now_s + _PATIENCE_S
            self._waiting.extend([(due_s, name, blocks) for name, blocks in self._fresh])
            self._fresh.clear()
        waiting = self._waiting
        while waiting:
            due_s, name, blocks = waiting[0]
            copies = self._index.copies(name)
            if due_s > now_s and copies is not None and blocks[-1] not in copies:
                return
            waiting.popleft()
            self._index.computed(name, blocks)
