"""Opening a trace: read it once into a table, see what it tells, and make a workload of it.

The one rule: nothing is made up silently; every assumption is a note of the workload. Not here: formats (`formats`),
columns (`table`), times and keys (`replays`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.arrivals import Workload
from sim.traces.continuations import Continuations, continuations
from sim.traces.files import Progress, items
from sim.traces.format import UNITS_S, Format, Reading
from sim.traces.formats import FORMATS, detected
from sim.traces.replays import USUAL, Pace, TraceArrivals, sizes, timed
from sim.traces.rows import BadRow, Item, LeftOut, TraceError
from sim.traces.table import Builder, Names, Table
from sim.traces.texts import APPROXIMATE, Texts, Tokenize

LENGTHS_ONLY = "lengths only: no prefix analysis"


@dataclass(frozen=True, slots=True)
class Trace:
    """A file that was read."""

    path: Path
    format: str
    sessions_begin_at_zero: bool
    table: Table
    skipped: tuple[tuple[str, int], ...]
    """Reasons of bad rows, with how many there were."""
    notes: tuple[str, ...]


def read(
    path: str | Path,
    *,
    tokenize: Tokenize | None = None,
    trace_block_tokens: int | None = None,
    text_block_tokens: int = 16,
    time_unit: str | None = None,
    answers: str | Path | None = None,
    skip_bad: bool = False,
    shared_head_tokens: int = 0,
    requests: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read a trace, its format told by its first row.

    `trace_block_tokens` and `time_unit` ("s", "ms", "us", "ns") overrule the format; `answers` is a batch's output
    file. Stops after `requests` requests. Raises `TraceError` with file, line and reason; with `skip_bad` only where
    nothing at all could be read.
    """
    if time_unit is not None and time_unit not in UNITS_S:
        raise TraceError(f"{time_unit!r} is no unit of time; use one of {', '.join(UNITS_S)}")
    path = Path(path)
    reading = Reading(trace_block_tokens, time_unit, None if answers is None else Path(answers))
    texts = Texts(tokenize, text_block_tokens)
    skipped: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    rows = _good(items(path, progress), path, skip_bad, skipped)
    found = next(rows, None)
    if found is None:
        raise TraceError(f"{path}: no row of it can be read{_listed(skipped, ': ')}")
    known = _known(path, *found)
    builder = Builder(
        block_tokens=trace_block_tokens or known.block_tokens, texts=texts, shared_head_tokens=shared_head_tokens
    )
    reader = known.reader(reading)
    for line, item in _again(found, rows):
        try:
            for row in list(reader(item)):
                builder.add(row)
        except LeftOut as why:
            left_out[why.reason] += 1
        except BadRow as bad:
            _refused(path, line, bad, skip_bad, skipped)
        if requests is not None and len(builder) >= requests:
            break
    if not len(builder):
        raise TraceError(f"{path}: holds no request ({known.name}){_listed(skipped + left_out, ': ')}")
    table = builder.finished()
    notes = _told(known, builder, texts, skipped, left_out)
    return Trace(path, known.name, known.sessions_begin_at_zero, table, tuple(sorted(skipped.items())), notes)


def _good(
    found: Iterator[tuple[int, Item | BadRow]], path: Path, skip_bad: bool, skipped: Counter[str]
) -> Iterator[tuple[int, Item]]:
    for line, item in found:
        if isinstance(item, BadRow):
            _refused(path, line, item, skip_bad, skipped)
        else:
            yield line, item


def _again(first: tuple[int, Item], rest: Iterator[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
    yield first
    yield from rest


def _refused(path: Path, line: int, bad: BadRow, skip_bad: bool, skipped: Counter[str]) -> None:
    if not skip_bad:
        more = f" ({bad.detail})" if bad.detail else ""
        raise TraceError(f"{path}, line {line}: {bad.reason}{more}; --skip-bad leaves such rows out") from None
    skipped[bad.reason] += 1


def _known(path: Path, line: int, first: Item) -> Format:
    known = detected(first)
    if known is None:
        members = ", ".join(sorted(map(str, first))[:12])
        names = ", ".join(sorted(each.name for each in FORMATS))
        raise TraceError(f"{path}, line {line}: a row with {members} is of no known trace format; known are {names}")
    return known


def _listed(reasons: Counter[str], before: str) -> str:
    return before + ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items())) if reasons else ""


def _told(
    known: Format, builder: Builder, texts: Texts, skipped: Counter[str], left_out: Counter[str]
) -> tuple[str, ...]:
    notes = list(known.notes)
    if texts.used and texts.approximate:
        notes.append(APPROXIMATE)
    if skipped:
        notes.append(f"{skipped.total()} bad rows skipped: {_listed(skipped, '')}")
    if left_out:
        notes.append(f"{left_out.total()} rows left out: {_listed(left_out, '')}")
    if builder.assumed_outputs:
        notes.append(f"answers of {builder.assumed_outputs} requests have no length: at most 256 tokens assumed")
    return tuple(notes)


def open_trace(
    path: str | Path,
    *,
    block_tokens: int | None = None,
    cache_outputs: bool = True,
    replay: str = "timestamps",
    spread_ticks: bool = False,
    rate: float | None = None,
    session_gap_s: float = 20.0,
    idle_cap_s: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Workload:
    """A trace as a workload; `options` are those of `read`, the others those of `Pace`.

    `block_tokens` is the engine's block: a divisor or a multiple of the trace's, which it is without it; text is cut
    into it. `cache_outputs` takes an answer's blocks from the prompt that continues it. Raises `TraceError`.
    """
    if replay not in ("timestamps", "think"):
        raise TraceError(f"{replay!r} is no way to replay a trace; use timestamps or think")
    pace = Pace(replay, spread_ticks, rate, session_gap_s, idle_cap_s, seed)  # type: ignore[arg-type] # just checked
    trace = read(path, text_block_tokens=block_tokens or 16, **options)
    return workload_of(trace, pace, block_tokens=block_tokens, cache_outputs=cache_outputs)


def workload_of(
    trace: Trace,
    pace: Pace = USUAL,
    *,
    block_tokens: int | None = None,
    cache_outputs: bool = True,
) -> Workload:
    """A workload of a trace that was read. Raises `SimError` for a block size it can't have."""
    table = trace.table
    size = block_tokens or table.block_tokens
    if table.has_prefixes:
        sizes(table.block_tokens, size)
    sessions, continued, notes = _sessions(table, answers=cache_outputs)
    named = sessions is table.session
    when = timed(table, sessions, pace, from_zero=trace.sessions_begin_at_zero, named=named)
    arrivals = TraceArrivals(table, when, sessions, continued if cache_outputs else None, size)
    return Workload(
        name=trace.path.name,
        block_tokens=size,
        arrivals=arrivals,
        requests=len(table),
        has_prefixes=table.has_prefixes,
        notes=(*trace.notes, *notes, *when.notes),
    )


def _sessions(table: Table, *, answers: bool) -> tuple[Names, Continuations | None, tuple[str, ...]]:
    """Sessions as told, else as inferred; which prompts continue which, where sessions or `answers` need it."""
    named = bool((table.session.codes >= 0).any())
    if not table.has_prefixes:
        return table.session, None, (LENGTHS_ONLY,)
    notes: tuple[str, ...] = ()
    if not table.was_chained:
        notes += ("one block id stood for several prefixes: blocks are numbered by prefix",)
    if unknown := int((table.blocks < 0).sum()):
        notes += (f"{unknown} requests tell lengths only: nothing is known of their prefixes",)
    if named and not answers:
        return table.session, None, notes
    continued = continuations(table, np.argsort(table.time_s, kind="stable"))
    if named:
        return table.session, continued, notes
    return continued.sessions(), continued, (*notes, "sessions are inferred from prompts that continue each other")


def sessions_of(table: Table) -> tuple[Names, tuple[str, ...]]:
    """Sessions as the trace names them, else as inferred, and what must be said of them."""
    sessions, _, notes = _sessions(table, answers=False)
    return sessions, notes
