"""Which prompts continue which: sessions where a trace names none, and what an answer's blocks were.

    continues     B continues A when B's blocks run through A's last full one; the longest such A, the latest of equals
    head          a block that more than 1 % of the prompts, and more than 100, have: it continues nothing
    answer        the blocks of A's answer are those of the first B that continues A, where B reaches as far

The one rule: blocks are numbered by their prefix, so one equal number proves all before it. Not here: time.
"""

from dataclasses import dataclass

import numpy as np

from sim.traces.table import Ints, Names, Table

_HEAD_FRACTION = 0.01
_FEWEST_OF_HEAD = 100


@dataclass(frozen=True, slots=True)
class Continuations:
    """What was inferred, by row."""

    order: Ints
    """Rows by time."""
    before: Ints
    """The row each row continues; -1 for none."""
    answered_by: Ints
    """The row whose prompt shows this row's answer; -1 for none."""

    def sessions(self) -> Names:
        """A session for every row: that of the row it continues, else one of its own."""
        codes = np.empty(len(self.before), np.int64)
        count = 0
        for row in self.order.tolist():
            before = self.before[row]
            if before < 0:
                codes[row] = count
                count += 1
            else:
                codes[row] = codes[before]
        return Names(codes, tuple(f"inferred-{number}" for number in range(count)))


def continuations(table: Table, order: Ints) -> Continuations:
    """Go through the rows in `order`, which is that of time."""
    heads = common_blocks(table)
    tail_of = np.full(table.space + 1, -1, np.int64)
    before = np.full(len(table), -1, np.int64)
    answered_by = np.full(len(table), -1, np.int64)
    size = table.block_tokens
    for row in order.tolist():
        full = int(table.prompt_tokens[row]) // size
        numbers = table.numbers(row)[: min(full, max(0, int(table.blocks[row])))]
        if not len(numbers):
            continue
        owners = tail_of[numbers]
        found = np.flatnonzero(owners >= 0)
        if len(found):
            earlier = int(owners[found[-1]])
            before[row] = earlier
            if answered_by[earlier] < 0 and len(numbers) > found[-1] + 1:
                answered_by[earlier] = row
        if len(numbers) == full and not heads[numbers[-1]]:
            tail_of[numbers[-1]] = row
    return Continuations(order, before, answered_by)


def common_blocks(table: Table) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which blocks too many prompts have for them to tell a session."""
    change = np.zeros(table.space + 2, np.int64)
    np.add.at(change, table.firsts, 1)
    np.add.at(change, table.lasts + 1, -1)
    heads: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.cumsum(change)[:-1] > max(
        _FEWEST_OF_HEAD, _HEAD_FRACTION * len(table)
    )
    return heads
