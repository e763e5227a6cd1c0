"""Prompts computed before their replica's events said so: they stay expected until it says so or had time to.

An engine answers first and publishes the step's events after; a request asked in between would not see what the one
before it left. The one rule: what a replica had a second to tell and did not is not there; one that tells of none of
its prompts tells of something else. Not here: what is expected (`policies.index`), and what follows from that.
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

from policies.index import PrefixIndex

_PATIENCE_S: Final = 1.0
_HEARD: Final = (0, 0.0, 0.0)


class _Prompt:
    __slots__ = ("blocks", "due_s", "last")

    def __init__(self, blocks: Sequence[bytes], last: bytes) -> None:
        self.blocks = blocks
        self.last = last
        """The last block that an engine can tell of: one whose blocks are larger tells of whole ones."""
        self.due_s = inf


class Landing:
    """Computed prompts of replicas that tell by events, the earliest of each first."""

    __slots__ = ("_fresh", "_index", "_unheard", "_waiting")

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._waiting: dict[str, deque[_Prompt]] = {}
        self._fresh: list[_Prompt] = []
        """Those nobody has looked for yet: patience begins with the first look."""
        self._unheard: dict[str, tuple[int, float, float]] = {}
        """By replica: prompts in a row it did not tell of, and when the first and the last of them was overdue."""

    def __len__(self) -> int:
        """Replicas that have something to tell."""
        return len(self._waiting)

    def unheard(self, name: str) -> tuple[int, float] | None:
        """Prompts in a row that a replica computed and did not tell of in time, and over how many seconds.

        None while nothing is known of that, and of a replica that does not tell by events.
        """
        if self._index.copies(name) is None:
            self._unheard.pop(name, None)
        found = self._unheard.get(name)
        return None if found is None else (found[0], found[2] - found[1])

    def computed(self, name: str, blocks: Sequence[bytes], whole: int) -> None:
        """The prompt's first token came; the replica can tell of its first `whole` blocks."""
        copies = self._index.copies(name)
        if copies is None or not whole:
            self._index.computed(name, blocks)
            return
        prompt = _Prompt(blocks, blocks[whole - 1])
        if prompt.last in copies:
            self._unheard[name] = _HEARD
            self._index.computed(name, blocks)
            return
        self._fresh.append(prompt)
        waiting = self._waiting.setdefault(name, deque())
        waiting.append(prompt)
        self._index.landing(name, len(waiting))

    def left(self, name: str) -> None:
        """The replica is gone, and what was expected of it."""
        self._waiting.pop(name, None)
        self._unheard.pop(name, None)

    def told(self, name: str) -> None:
        """The replica told something: what it stored is no more expected, lest it be believed when it is removed."""
        waiting = self._waiting.get(name)
        if waiting is not None:
            copies = self._index.copies(name)
            left = deque[_Prompt]()
            for prompt in waiting:
                if copies is None or prompt.last in copies:
                    self._unheard[name] = _HEARD
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
                prompts, first_s, _ = self._unheard.get(name, _HEARD)
                while waiting and waiting[0].due_s <= now_s:
                    self._index.computed(name, waiting.popleft().blocks)
                    first_s = first_s if prompts else now_s
                    prompts += 1
                self._unheard[name] = prompts, first_s, now_s
                self._keep(name, waiting)

    def _keep(self, name: str, waiting: "deque[_Prompt]") -> None:
        self._index.landing(name, len(waiting))
        if waiting:
            self._waiting[name] = waiting
        else:
            del self._waiting[name]
