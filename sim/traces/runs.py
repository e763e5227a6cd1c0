"""Block ids as runs: traces number new blocks upwards, so a prompt of a thousand blocks is a handful of ranges.

    runs     ((first, last), …) inclusive, unsigned 64 bits, in prompt order; neighbours are merged

The one rule: runs are lossless and maximal, so equal prompts have equal runs. Not here: what an id stands for.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Runs = tuple[tuple[int, int], ...]
Ids = npt.NDArray[np.uint64]

_WORD = (1 << 64) - 1


def runs_of(ids: Sequence[Any]) -> Runs:
    """Ids as runs; negative ones stand for their 64 bits. Raises `ValueError` for what is no whole number."""
    if not len(ids):
        return ()
    words = _words(ids)
    breaks = np.flatnonzero((np.diff(words) != 1) | (words[1:] == 0)) + 1  # the difference wraps around at 0
    firsts = words[np.concatenate(([0], breaks))]
    lasts = words[np.concatenate((breaks - 1, [len(words) - 1]))]
    return merged(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _words(ids: Sequence[Any]) -> Ids:
    kinds = set(map(type, ids))
    if kinds != {int}:
        raise ValueError("an id is no whole number")
    try:
        return np.array(ids, np.int64).view(np.uint64)
    except OverflowError:
        return np.array([number & _WORD for number in ids], np.uint64)


def merged(pairs: Iterable[Sequence[int]]) -> Runs:
    """Inclusive ranges as runs. Raises `ValueError` for one that is none."""
    runs: list[tuple[int, int]] = []
    for first, last in pairs:
        if type(first) is not int or type(last) is not int or last < first:
            raise ValueError("a range of ids is none")
        if runs and runs[-1][1] + 1 == first:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return tuple(runs)


def count_of(runs: Runs) -> int:
    return sum(last - first + 1 for first, last in runs)


def cut(runs: Runs, count: int) -> Runs:
    """The first `count` ids."""
    kept = []
    for first, last in runs:
        if count <= 0:
            break
        kept.append((first, min(last, first + count - 1)))
        count -= last - first + 1
    return tuple(kept)


def after(runs: Runs, count: int) -> Runs:
    """All but the first `count` ids."""
    kept = []
    for first, last in runs:
        length = last - first + 1
        if count < length:
            kept.append((first + max(0, count), last))
        count -= length
    return tuple(kept)


def spread(runs: Runs) -> Ids:
    """The ids one by one."""
    parts = [np.arange(last - first + 1, dtype=np.uint64) + np.uint64(first) for first, last in runs]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def unique_count(firsts: Ids, lasts: Ids) -> int:
    """How many different ids these ranges hold together."""
    if not len(firsts):
        return 0
    order = np.argsort(firsts)
    begin, end = firsts[order], np.maximum.accumulate(lasts[order])
    fresh = np.ones(len(begin), bool)
    fresh[1:] = begin[1:] > end[:-1]
    starts = np.flatnonzero(fresh)
    ends = end[np.concatenate((starts[1:] - 1, [len(end) - 1]))]
    return int((ends - begin[starts] + np.uint64(1)).sum())


def chained(firsts: Ids, lasts: Ids, before: Ids, rooted: npt.NDArray[np.bool_]) -> bool:
    """Whether an id always has the same id before it, or always none.

    One entry a range: its ends, the id before it in its prompt, and whether it begins the prompt instead.
    """
    if not len(firsts):
        return True
    before = np.where(rooted, np.uint64(0), before)
    order = np.lexsort((before, rooted, firsts))
    ids, came, root = firsts[order], before[order], rooted[order]
    if bool(((ids[1:] == ids[:-1]) & ((came[1:] != came[:-1]) | (root[1:] != root[:-1]))).any()):
        return False
    long = lasts > firsts  # inside a range an id follows its number's predecessor, which no start of a range does
    inside, ends = np.sort(firsts[long] + np.uint64(1)), np.sort(lasts[long])
    covering = np.searchsorted(inside, ids, side="right") - np.searchsorted(ends, ids, side="left")
    return not bool((covering > 0).any())
