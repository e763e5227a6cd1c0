"""A table as a workload: when each request comes, what it waits for, and the keys of its blocks.

    key       4 bytes what (block of the trace, or of an answer nobody continued), 8 bytes its number, 4 bytes its part

A trace's block may be simulated at its own size, cut into parts for a smaller one, or joined to a larger one. The one
rule: going through the arrivals twice gives the same ones, and nothing but the block asked for is made of them. Not
here: reading (`opening`) and inference (`continuations`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np

from sim.arrivals import Arrival
from sim.errors import SimError
from sim.traces.continuations import Continuations
from sim.traces.table import Floats, Ints, Names, Table

Replay = Literal["timestamps", "think"]

_KEY = np.dtype([("what", "<u4"), ("number", "<u8"), ("part", "<u4")])
_BLOCK, _ANSWER = 0, 1


@dataclass(frozen=True, slots=True)
class Pace:
    """How a trace's times are used."""

    replay: Replay = "timestamps"
    """With "think", a session's later requests wait for the answer before and then think as long as they did."""
    spread_ticks: bool = False
    """Spread requests of one timestamp evenly up to the next one."""
    rate: float | None = None
    """Requests a second: stretches the trace's times to it; 1 where the trace has no times."""
    session_gap_s: float = 20.0
    """Mean of the drawn gaps between the starts of sessions whose times begin at 0."""
    idle_cap_s: float | None = None
    """Longest pause in a session, for sessions whose times begin at 0."""
    seed: int = 0


USUAL = Pace()


@dataclass(frozen=True, slots=True)
class Timed:
    """Rows in the order of their time."""

    order: Ints
    time_s: Floats
    """By row, from 0; of a request that waits, the earliest it could come."""
    think_s: Floats
    """By row; NaN for a request that waits for nothing."""
    notes: tuple[str, ...]


def timed(table: Table, sessions: Names, pace: Pace, *, from_zero: bool, named: bool) -> Timed:
    """When each row's request comes; rows of one time keep file order.

    `from_zero`: times are each session's own. `named`: the trace names its sessions, so that a later turn without a
    time follows the answer before it.
    """
    dice = Random(pace.seed)
    known = ~np.isnan(table.time_s)
    notes: list[str] = []
    if from_zero:
        times = _sessions_begun(table, sessions, pace, dice)
        notes.append(f"when sessions began is not known: drawn, {pace.session_gap_s:g} s apart in the mean")
    elif known.any():
        times = _filled(table.time_s - np.nanmin(table.time_s), sessions, lambda: 0.0)
    else:
        rate = pace.rate or 1.0
        times = _filled(table.time_s, sessions, lambda: dice.expovariate(rate))
        notes.append(f"the trace has no times: {rate:g} a second drawn")
    order = np.argsort(times, kind="stable")
    if pace.spread_ticks:
        times = _spread(times, order)
    if pace.rate is not None and known.any() and len(times) > 1 and times.max() > 0:
        times = times * ((len(times) - 1) / pace.rate / times.max())
        notes.append(f"times were stretched to {pace.rate:g} requests a second")
    think = _thinking(table, sessions, order)
    if pace.replay == "timestamps":
        think[known if named else np.ones(len(known), bool)] = np.nan
    times = _earliest(times, think, sessions, order)
    return Timed(order[np.argsort(times[order], kind="stable")], times, think, tuple(notes))


def _filled(times: Floats, sessions: Names, gap_s: Callable[[], float]) -> Floats:
    """Where a row has no time, that of the row before it in its session, else `gap_s` after the row before it."""
    if not np.isnan(times).any():
        return times
    filled = times.copy()
    latest: dict[int, float] = {}
    last: float | None = None
    for row, (time_s, session) in enumerate(zip(times.tolist(), sessions.codes.tolist(), strict=True)):
        if np.isnan(time_s):
            held = latest.get(session) if session >= 0 else None
            filled[row] = held if held is not None else 0.0 if last is None else last + gap_s()
        last = latest[session] = float(filled[row])
    return filled


def _sessions_begun(table: Table, sessions: Names, pace: Pace, dice: Random) -> Floats:
    """Times of sessions that each begin at 0: starts drawn, pauses capped. Nested agents begin with their session."""
    times = table.time_s.copy()
    start_s = 0.0
    root = ""
    begins: dict[str, float] = {}
    last: dict[str, tuple[float, float]] = {}
    for row in range(len(table)):
        name = (sessions.of(row) or "").split("/", 1)[0]
        if name != root and name not in begins:
            begins[name] = start_s
            start_s += dice.expovariate(1.0 / pace.session_gap_s)
        root = name
        told = float(table.time_s[row])
        before, at = last.get(name, (told, begins[name] + told))
        pause = told - before
        if pace.idle_cap_s is not None and pause > pace.idle_cap_s:
            pause = pace.idle_cap_s
        times[row] = at + pause
        last[name] = (told, float(times[row]))
    return times


def _spread(times: Floats, order: Ints) -> Floats:
    """Requests of one tick at equal distances up to the next tick; the last tick is as long as the median one."""
    ticks, first, counts = np.unique(times[order], return_index=True, return_counts=True)
    if len(ticks) < 2:
        return times
    lengths = np.diff(ticks)
    lengths = np.append(lengths, np.median(lengths))
    within = np.arange(len(times)) - np.repeat(first, counts)
    spread = times.copy()
    spread[order] += within * np.repeat(lengths / counts, counts)
    return spread


def _thinking(table: Table, sessions: Names, order: Ints) -> Floats:
    """Pauses after the answer before: as told, else from times, of starts where nobody knows when answers ended."""
    think = np.full(len(table), np.nan)
    before: dict[int, int] = {}
    for row in order.tolist():
        session = int(sessions.codes[row])
        if session < 0:
            continue
        earlier = before.get(session)
        before[session] = row
        if earlier is None:
            continue
        told = table.think_s[row]
        gap = table.time_s[row] - table.time_s[earlier]
        took = table.took_s[earlier]
        if not np.isnan(told):
            think[row] = told
        elif np.isnan(gap):
            think[row] = 0.0
        else:
            think[row] = max(0.0, gap - (0.0 if np.isnan(took) else took))
    return think


def _earliest(times: Floats, think: Floats, sessions: Names, order: Ints) -> Floats:
    """When each could come if answers took no time: how long they take is the simulated engine's business."""
    earliest = times.copy()
    before: dict[int, int] = {}
    for row in order.tolist():
        session = int(sessions.codes[row])
        if not np.isnan(think[row]):
            earliest[row] = earliest[before[session]] + think[row]
        before[session] = row
    return earliest


def sizes(trace_tokens: int, block_tokens: int) -> tuple[int, int]:
    """Parts a trace's block is cut into, and blocks joined to one; one of the two is 1. Raises `SimError`."""
    if trace_tokens % block_tokens == 0:
        return trace_tokens // block_tokens, 1
    if block_tokens % trace_tokens == 0:
        return 1, block_tokens // trace_tokens
    raise SimError(
        f"blocks of {block_tokens} tokens can't be made of a trace's of {trace_tokens}; "
        f"choose a divisor or a multiple of {trace_tokens}"
    )


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """The arrivals of a trace, made anew each time they are gone through."""

    table: Table
    timed: Timed
    sessions: Names
    continued: Continuations | None
    """None keeps answers out of caches."""
    block_tokens: int

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Arrival]:
        table, timed = self.table, self.timed
        for number, row in enumerate(timed.order.tolist()):
            prompt, output = int(table.prompt_tokens[row]), int(table.output_tokens[row])
            cached, ttft, think = int(table.cached_tokens[row]), float(table.ttft_s[row]), float(timed.think_s[row])
            yield Arrival(
                number=number,
                time_s=float(timed.time_s[row]),
                prompt_tokens=prompt,
                output_tokens=output,
                keys=self.keys(row, prompt, output),
                session=self.sessions.of(row),
                user=table.user.of(row),
                tenant=table.tenant.of(row) or "",
                route=table.route.of(row) or "",
                model=table.model.of(row) or "",
                think_s=None if think != think else think,
                cached_tokens=None if cached < 0 else cached,
                ttft_s=None if ttft != ttft else ttft,
            )

    def keys(self, row: int, prompt_tokens: int, output_tokens: int) -> tuple[bytes, ...]:
        """Keys of the full blocks of prompt and answer, at the workload's size of a block."""
        table = self.table
        if table.blocks[row] < 0:
            return ()
        wanted = (prompt_tokens + output_tokens) // self.block_tokens
        parts, joined = sizes(table.block_tokens, self.block_tokens)
        numbers = self._path(row, prompt_tokens, output_tokens)
        if joined > 1:
            numbers = numbers[joined - 1 :: joined]
        elif parts > 1:
            numbers = np.repeat(numbers, parts)
        known = min(wanted, len(numbers), self._told(row, prompt_tokens, len(numbers)))
        keys = np.empty(wanted, _KEY)
        keys["what"][:known] = _BLOCK
        keys["number"][:known] = numbers[:known]
        keys["part"][:known] = np.arange(known) % parts if parts > 1 else 0
        keys["what"][known:] = _ANSWER
        keys["number"][known:] = row
        keys["part"][known:] = np.arange(wanted - known)
        return tuple(keys.view("V16").tolist())

    def _told(self, row: int, prompt_tokens: int, numbers: int) -> int:
        """How many of the numbers may be used: one of a block that is not full stands for the prompt's part of it."""
        return prompt_tokens // self.block_tokens if self._ends_partial(row) else numbers

    def _ends_partial(self, row: int) -> bool:
        answered = self.continued is not None and self.continued.answered_by[row] >= 0
        return bool(self.table.partial[row]) and not answered

    def _path(self, row: int, prompt_tokens: int, output_tokens: int) -> Ints:
        """Block numbers of prompt and answer as far as they are known, at the trace's size of a block."""
        table = self.table
        numbers = table.numbers(row)
        full = prompt_tokens // table.block_tokens
        if table.blocks[row] > full:  # the trace holds the answer's text
            return numbers if self.continued is not None else numbers[:full]
        if self._ends_partial(row):
            return numbers
        numbers = numbers[: int(table.blocks[row])]
        if self.continued is None or self.continued.answered_by[row] < 0 or len(numbers) < full:
            return numbers
        later = int(self.continued.answered_by[row])
        reach = min((prompt_tokens + output_tokens) // table.block_tokens, int(table.blocks[later]))
        return np.concatenate((numbers, table.numbers(later)[full:reach]))
