"""Where a chat's contents stand in its rendered text, and what a template asked of them on the way.

These are what is left of a trace (`router.traced`) and answer for the contents of any later chat. The one rule: a place
does with a content what the template did. Not here: how it was noted.
"""

from dataclasses import dataclass
from typing import Any, Final

Changes = tuple[tuple[str, tuple[Any, ...]], ...]
"""String methods with their arguments, one applied after the other; before those of a split, which part is taken."""

SPLITTING: Final = frozenset(["split", "rsplit"])


@dataclass(frozen=True, slots=True)
class Place:
    """The content of message number `message`, changed by `changes`."""

    message: int
    changes: Changes = ()

    def of(self, contents: list[str]) -> str:
        """What stands here when these are the contents."""
        value = contents[self.message]
        if not self.changes:
            return value
        for name, arguments in self.changes:
            if name in SPLITTING:
                value = getattr(value, name)(*arguments[1:])[arguments[0]]
            else:
                value = getattr(value, name)(*arguments)
        return value


@dataclass(frozen=True, slots=True)
class Guard:
    """A question the template asked of a place, and the answer it got."""

    place: Place
    question: str
    arguments: tuple[Any, ...]
    answer: bool

    def holds(self, contents: list[str]) -> bool:
        return asked(self.place.of(contents), self.question, self.arguments) is self.answer


def asked(value: str, question: str, arguments: tuple[Any, ...]) -> bool:
    """A string method's answer; of the empty question, whether there is any text."""
    return bool(getattr(value, question)(*arguments)) if question else bool(value)
