"""Where one publisher's numbered batches stand: in order, missing, seen already, or of a new process.

Numbers start at 0 with the engine's process and go up by one (vLLM 0.10 to 0.33). The one rule: batches are taken in
order or not at all, so that a late one never brings back what a later one removed. Clocks are not believed: whether a
number that goes back is a repetition or a new process is told by the payload. Not here: asking for what is missing.
"""

import zlib
from array import array
from enum import Enum
from typing import Final

MOST_NUMBER: Final = 1 << 40
"""Batches of 300 years; what claims more is no number."""

_REMEMBERED: Final = 16_384  # batches; more than an engine publishes while its whole replay buffer is read
_MARKED_BYTES: Final = 4096


class Turn(Enum):
    """What a batch is to what came before it."""

    NEXT = "next"
    SEEN = "seen"
    AHEAD = "ahead"
    RESTARTED = "restarted"


class Sequence:
    """The numbers of one publisher."""

    __slots__ = ("_first", "_marks", "_numbers", "last", "next")

    def __init__(self) -> None:
        self.restarted()

    def __repr__(self) -> str:
        return f"<Sequence next {self.next}>"

    def restarted(self) -> None:
        """A new process counts from 0."""
        self.next = 0
        self.last: int | None = None
        """The number taken last; None before any."""
        self._first = 0
        self._numbers = array("q", [-1]) * _REMEMBERED
        self._marks = array("I", [0]) * _REMEMBERED

    def turn(self, number: int, payload: bytes) -> Turn:
        """What this batch is; changes nothing."""
        if number == self.next:
            return Turn.NEXT
        if number > self.next:
            return Turn.AHEAD
        if number < self._first or number <= self.next - _REMEMBERED:
            return Turn.RESTARTED
        slot = number % _REMEMBERED
        if self._numbers[slot] != number:
            return Turn.SEEN  # it was given up; now it is too late
        return Turn.SEEN if self._marks[slot] == _mark(payload) else Turn.RESTARTED

    def took(self, number: int, payload: bytes) -> None:
        """This batch is taken; those before it that were not are given up."""
        if self.last is None:
            self._first = number
        self.last, self.next = number, number + 1
        slot = number % _REMEMBERED
        self._numbers[slot], self._marks[slot] = number, _mark(payload)


def _mark(payload: bytes) -> int:
    return zlib.crc32(payload[:_MARKED_BYTES], len(payload) & 0xFFFFFFFF)
