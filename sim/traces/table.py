"""A trace in memory: one column a member, and each prompt's blocks as runs of dense numbers.

The one rule: a block number stands for one whole prefix. Ids of different scopes get different numbers; where a trace
gives one id to different prefixes, its prompts are numbered anew by their prefix. A million requests fit easily, text
is never kept. Not here: reading (`opening`) and what a workload makes of it (`replays`).
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.traces import runs as ranges
from sim.traces.rows import BadRow, Item, Row
from sim.traces.texts import Texts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_DENSE = 4
"""Numbers may be this many times as many as the ids told before they are made dense."""


@dataclass(frozen=True, slots=True)
class Names:
    """A column of names as codes; -1 is none."""

    codes: Ints
    names: tuple[str, ...]

    def of(self, row: int) -> str | None:
        code = self.codes[row]
        return None if code < 0 else self.names[code]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in file order. NaN and -1 stand for unknown in number columns."""

    block_tokens: int
    time_s: Floats
    think_s: Floats
    took_s: Floats
    ttft_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    session: Names
    user: Names
    tenant: Names
    route: Names
    model: Names
    run_from: Ints
    """Row i has the runs `run_from[i]:run_from[i + 1]`."""
    firsts: Ints
    lasts: Ints
    blocks: Ints
    """How many full blocks of prompt, and perhaps answer, each row tells; -1 when it tells none."""
    partial: Ints
    """1 where one more id follows, of the prompt's last block, which is not full."""
    space: int
    """All numbers are below this."""
    unique_blocks: int
    was_chained: bool

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def has_prefixes(self) -> bool:
        """Whether any row tells blocks, be it that it has none because its prompt is shorter than one."""
        return bool((self.blocks >= 0).any())

    def numbers(self, row: int) -> Ints:
        """The block numbers of one row, one by one."""
        at, to = self.run_from[row], self.run_from[row + 1]
        if to == at:
            return np.empty(0, np.int64)
        if to == at + 1:
            return np.arange(self.firsts[at], self.lasts[at] + 1)
        return np.concatenate([np.arange(self.firsts[run], self.lasts[run] + 1) for run in range(at, to)])

    def prompts(self) -> Iterator[tuple[int, list[int]]]:
        """Tokens and block numbers of prompts in file order, where told; the last block may be a partial one."""
        for row in np.flatnonzero(self.blocks >= 0).tolist():
            tokens = int(self.prompt_tokens[row])
            yield tokens, self.numbers(row)[: tokens // self.block_tokens + self.partial[row]].tolist()


class _Coding:
    """Names become codes in the order in which they come."""

    def __init__(self) -> None:
        self.codes = array("q")
        self._code_of: dict[str, int] = {}

    def add(self, name: str | None) -> None:
        self.codes.append(-1 if not name else self._code_of.setdefault(name, len(self._code_of)))

    def names(self) -> Names:
        return Names(np.array(self.codes, np.int64), tuple(self._code_of))


class Builder:
    """Takes rows one by one and gives the table of them."""

    def __init__(
        self, *, block_tokens: int | None, texts: Texts, shared_head_tokens: int = 0, assumed_output_tokens: int = 256
    ) -> None:
        """`block_tokens` is the size of ids where rows don't say; sessions share `shared_head_tokens` of local ids."""
        self._usual_block_tokens = block_tokens
        self._block_tokens: int | None = None
        self.assumed_outputs = 0
        """How many rows didn't tell the length of their answer."""
        self._assumed_output_tokens = assumed_output_tokens
        self._texts = texts
        self._head_tokens = shared_head_tokens
        self._heads: dict[int, tuple[int, int]] = {}
        self._floats = {name: array("d") for name in ("time_s", "think_s", "took_s", "ttft_s")}
        self._counts = {
            name: array("q") for name in ("prompt_tokens", "output_tokens", "cached_tokens", "blocks", "partial")
        }
        self._names = {name: _Coding() for name in ("session", "user", "tenant", "route", "model")}
        self._scopes: dict[str, int] = {"": 0}
        self._run_from = array("q", [0])
        self._firsts, self._lasts, self._run_scopes = array("Q"), array("Q"), array("q")

    def __len__(self) -> int:
        return len(self._run_from) - 1

    def add(self, row: Row) -> None:
        """One more row. Raises `BadRow`, and then nothing of it is kept."""
        prompt, output, runs = self._counted(row)
        for name, seconds in self._floats.items():
            value = getattr(row, name)
            seconds.append(float("nan") if value is None else value)
        self._counts["prompt_tokens"].append(prompt)
        self._counts["output_tokens"].append(output)
        self._counts["cached_tokens"].append(-1 if row.cached_tokens is None else row.cached_tokens)
        told = -1 if runs is None else ranges.count_of(runs)
        partial = int(row.ask is None and told > prompt // (self._block_tokens or 1))
        self._counts["blocks"].append(told - partial)
        self._counts["partial"].append(partial)
        for name, coding in self._names.items():
            coding.add(getattr(row, name))
        self._put(runs or (), self._scopes.setdefault(row.scope, len(self._scopes)), row.head_tokens)

    def _counted(self, row: Row) -> tuple[int, int, ranges.Runs | None]:
        if row.ask is not None:
            prompt, answer, blocks = self._texts.read(row.ask, row.model)
            if not prompt:
                raise BadRow("the prompt is empty")
            self._sized(self._texts.block_tokens)
            output = answer if row.output_tokens is None else row.output_tokens
            return prompt, self._output(output, row.ask.body), ranges.runs_of(blocks)
        if row.prompt_tokens is None:
            raise BadRow("neither lengths nor text")
        if row.runs is not None:
            self._fitting(row.prompt_tokens, ranges.count_of(row.runs), row.block_tokens)
        return row.prompt_tokens, self._output(row.output_tokens, {}), row.runs

    def _output(self, told: int | None, body: Item) -> int:
        """The answer's length: one token at least, as engines do."""
        if told is not None:
            return max(1, told)
        self.assumed_outputs += 1
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        return (
            min(limit, self._assumed_output_tokens) if type(limit) is int and limit > 0 else self._assumed_output_tokens
        )

    def _fitting(self, prompt: int, ids: int, block_tokens: int | None) -> None:
        size = block_tokens or self._block_tokens or self._usual_block_tokens
        if not size:
            raise BadRow("block ids without a block size", "say how many tokens an id stands for")
        least = 0 if block_tokens else max(0, (prompt - 1) // size)  # a size that is told can't be the wrong one
        if not least <= ids <= -(-prompt // size):
            raise BadRow("another number of block ids than the prompt has blocks", f"{ids} for {prompt} of {size}")
        self._sized(size)

    def _sized(self, size: int) -> None:
        if self._block_tokens not in (None, size):
            raise BadRow("another block size than the rows before", f"{size}, not {self._block_tokens}")
        self._block_tokens = size

    def _put(self, runs: ranges.Runs, scope: int, head_tokens: int) -> None:
        """Append runs; those of the head that sessions share go to the scope -1."""
        if self._head_tokens and scope and runs:
            if scope not in self._heads:
                length = min(self._head_tokens, head_tokens or self._head_tokens) // (self._block_tokens or 1)
                first, last = runs[0]
                self._heads[scope] = (first, min(last, first + length - 1))
            first, last = self._heads[scope]
            if last >= first == runs[0][0]:
                shared = min(runs[0][1], last) - first
                self._append(0, shared, -1)
                runs = ranges.after(runs, shared + 1)
        for first, last in runs:
            self._append(first, last, scope)
        self._run_from.append(len(self._firsts))

    def _append(self, first: int, last: int, scope: int) -> None:
        self._firsts.append(first)
        self._lasts.append(last)
        self._run_scopes.append(scope)

    def finished(self) -> Table:
        """The table of all rows so far."""
        run_from = np.array(self._run_from, np.int64)
        firsts, lasts = np.array(self._firsts, np.uint64), np.array(self._lasts, np.uint64)
        scopes = np.array(self._run_scopes, np.int64)
        flat = _flat(firsts, lasts, scopes)
        chained = flat is not None and _chained(*flat, run_from)
        if flat is None or not chained:
            chained, numbers = _numbered(firsts, lasts, scopes, run_from)
            run_from, firsts, lasts = _runs(numbers)
        else:
            firsts, lasts = flat
        return Table(
            block_tokens=self._block_tokens or self._texts.block_tokens,
            time_s=self._seconds("time_s"),
            think_s=self._seconds("think_s"),
            took_s=self._seconds("took_s"),
            ttft_s=self._seconds("ttft_s"),
            prompt_tokens=self._count("prompt_tokens"),
            output_tokens=self._count("output_tokens"),
            cached_tokens=self._count("cached_tokens"),
            session=self._names["session"].names(),
            user=self._names["user"].names(),
            tenant=self._names["tenant"].names(),
            route=self._names["route"].names(),
            model=self._names["model"].names(),
            run_from=run_from,
            firsts=firsts.astype(np.int64),
            lasts=lasts.astype(np.int64),
            blocks=self._count("blocks"),
            partial=self._count("partial"),
            space=int(lasts.max()) + 1 if len(lasts) else 0,
            unique_blocks=ranges.unique_count(firsts, lasts),
            was_chained=chained,
        )

    def _seconds(self, name: str) -> Floats:
        return np.array(self._floats[name], np.float64)

    def _count(self, name: str) -> Ints:
        return np.array(self._counts[name], np.int64)


def _flat(firsts: ranges.Ids, lasts: ranges.Ids, scopes: Ints) -> tuple[ranges.Ids, ranges.Ids] | None:
    """Ranges in one space of numbers, scope after scope; None when that space would be mostly empty."""
    if not len(firsts):
        return firsts, lasts
    places = scopes - scopes.min()
    ends = np.zeros(int(places.max()) + 1, np.uint64)
    np.maximum.at(ends, places, lasts)
    told = int((lasts - firsts).sum(dtype=np.float64)) + len(firsts)
    if float(ends.astype(np.float64).sum()) > _DENSE * told + 1024:
        return None
    base = np.concatenate((np.zeros(1, np.uint64), np.cumsum(ends + np.uint64(1))[:-1]))
    return firsts + base[places], lasts + base[places]


def _chained(firsts: ranges.Ids, lasts: ranges.Ids, run_from: Ints) -> bool:
    rooted = np.zeros(len(firsts) + 1, bool)
    rooted[run_from] = True
    before = np.concatenate((np.zeros(1, np.uint64), lasts[:-1])) if len(lasts) else lasts
    return ranges.chained(firsts, lasts, before, rooted[:-1])


def _numbered(firsts: ranges.Ids, lasts: ranges.Ids, scopes: Ints, run_from: Ints) -> tuple[bool, list[ranges.Runs]]:
    """Every row's blocks numbered by their whole prefix, and whether the ids had been as good as that."""
    nodes: dict[tuple[int, int, int], int] = {}
    ids: set[tuple[int, int]] = set()
    rows = []
    for at, to in zip(run_from[:-1].tolist(), run_from[1:].tolist(), strict=True):
        node, numbers = -1, []
        for run in range(at, to):
            scope = int(scopes[run])
            for number in range(int(firsts[run]), int(lasts[run]) + 1):
                ids.add((scope, number))
                node = nodes.setdefault((node, scope, number), len(nodes))
                numbers.append(node)
        rows.append(ranges.runs_of(numbers))
    return len(ids) == len(nodes), rows


def _runs(rows: Sequence[ranges.Runs]) -> tuple[Ints, ranges.Ids, ranges.Ids]:
    pairs = np.array([pair for runs in rows for pair in runs], np.uint64).reshape(-1, 2)
    starts = np.cumsum([0, *map(len, rows)])
    return starts.astype(np.int64), pairs[:, 0].copy(), pairs[:, 1].copy()
