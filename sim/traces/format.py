"""What a trace format is: how it is known, and how one of its rows becomes requests.

The one rule: a reader sees one row at a time, in file order, and may remember what later rows need.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sim.traces.rows import Item, Row

Reader = Callable[[Item], Iterable[Row]]
"""One row in, the requests it tells of out. Raises `BadRow`, and `LeftOut` for a good row that is none."""

UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the user said about a file beyond its format."""

    block_tokens: int | None = None
    """Tokens of one block id; None goes by the format."""
    time_unit: str | None = None
    """One of `UNITS_S`; None goes by the format."""
    answers: Path | None = None
    """The output file of a batch."""

    def unit_s(self, usual: str) -> float:
        return UNITS_S[self.time_unit or usual]


@dataclass(frozen=True, slots=True)
class Format:
    """One format. `members` are those every row has; `matches` decides when several formats share them."""

    name: str
    matches: Callable[[Item], bool]
    reader: Callable[[Reading], Reader]
    block_tokens: int | None = None
    """Tokens of one block id where neither file nor user says; None when rows hold none."""
    sessions_begin_at_zero: bool = False
    """Times count from the start of the row's session, so sessions have to be put somewhere."""
    notes: tuple[str, ...] = ()


def having(*names: str) -> Callable[[Item], bool]:
    """A test for rows that have all these members."""
    return lambda item: all(name in item for name in names)


def stateless(read: Reader) -> Callable[[Reading], Reader]:
    """A format whose rows need nothing but themselves."""
    return lambda _: read
