"""Prompts computed before their replica's events said so: they stay expected until it says so or had time to.

An engine answers first and publishes the step's events after; a request asked in between would not see what the one
before it left. The one rule: what a replica had a second to tell and did not is not there. Not here: what is expected
(`policies.index`).
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

from policies.index import PrefixIndex

_PATIENCE_S: Final = 1.0


class _Prompt:
    __slots__ = ("blocks", "due_s")

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self.blocks = blocks
        self.due_s = inf


class Landing:
    """Computed prompts of replicas that tell by events, the earliest of each first."""

    __slots__ = ("_fresh", "_index", "_waiting")

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._waiting: dict[str, deque[_Prompt]] = {}
        self._fresh: list[_Prompt] = []
        """Those nobody has looked for yet: patience begins with the first look."""

    def __len__(self) -> int:
        """Replicas that have something to tell."""
        return len(self._waiting)

    def computed(self, name: str, blocks: Sequence[bytes]) -> None:
        """The prompt's first token came."""
        if not blocks or self._index.copies(name) is None:
            self._index.computed(name, blocks)
            return
        prompt = _Prompt(blocks)
        self._fresh.append(prompt)
        self._waiting.setdefault(name, deque()).append(prompt)

    def left(self, name: str) -> None:
        """The replica is gone, and what was expected of it."""
        self._waiting.pop(name, None)

    def told(self, name: str) -> None:
        """The replica told something: what it stored is no more expected, lest it be believed when it is removed."""
        waiting = self._waiting.get(name)
        if waiting is not None:
            copies = self._index.copies(name)
            left = deque[_Prompt]()
            for prompt in waiting:
                if copies is None or prompt.blocks[-1] in copies:
                    self._index.computed(name, prompt.blocks)
                else:
                    left.append(prompt)
            self._keep(name, left)

    def looked(self, now_s: float) -> None:
        """Somebody is about to look: what is overdue will not come."""
        for prompt in self._fresh:
            prompt.due_s = now_s + _PATIENCE_S
        self._fresh.clear()
        for name, waiting in list(self._waiting.items()):
            if waiting[0].due_s <= now_s:
                while waiting and waiting[0].due_s <= now_s:
                    self._index.computed(name, waiting.popleft().blocks)
                self._keep(name, waiting)

    def _keep(self, name: str, waiting: "deque[_Prompt]") -> None:
        if waiting:
            self._waiting[name] = waiting
        else:
            del self._waiting[name]
