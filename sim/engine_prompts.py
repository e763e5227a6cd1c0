"""How the prompts of an engine's log begin, told by a trace of the same requests: the logs hold lengths only.

The one rule: the trace holds the log's requests in the log's order, perhaps others between them, and each has the
prompt tokens that the log says; else nothing is taken from it. Answers share nothing: what an engine said is not what a
data set says it would. Not here: reading traces (`sim.traces`), times (`engine_logs`).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sim.engine_logs import LogError
from sim.replay import Sent
from sim.traces.opening import read
from sim.traces.replays import sizes
from sim.traces.table import Ints, Table

_TOLD = 1 << 63  # apart from the keys that `replay` makes up


def told(
    sent: Sequence[Sent],
    path: Path,
    block_tokens: int,
    *,
    trace_block_tokens: int | None = None,
    rows: Sequence[int] | None = None,
) -> tuple[Sent, ...]:
    """The requests, with the keys of what their prompts begin with, in blocks of the engine's size.

    `trace_block_tokens` overrules how many tokens an id of the trace stands for; `rows` are the requests' places in it
    where the log is the trace. Raises `LogError` for a trace of other
    requests or without block ids, `SimError` for one that can't be read or has blocks of no fitting size.
    """
    table = read(path, trace_block_tokens=trace_block_tokens, text_block_tokens=block_tokens).table
    if not table.has_prefixes:
        raise LogError(f"{path} tells lengths only, not how prompts begin: it needs block ids or text")
    return tuple(
        replace(request, begins=_keys(table.numbers(row), request.prompt_tokens, table.block_tokens, block_tokens))
        for request, row in zip(sent, _rows(sent, table, path) if rows is None else rows, strict=True)
    )


def _rows(sent: Sequence[Sent], table: Table, path: Path) -> Iterator[int]:
    """The row of each request: the next one with a prompt as long."""
    lengths = table.prompt_tokens.tolist()
    row = 0
    for place, request in enumerate(sent, 1):
        try:
            row = lengths.index(request.prompt_tokens, row) + 1
        except ValueError:
            raise LogError(
                f"{path} is no trace of the log's requests: after its row {row} there is none with the"
                f" {request.prompt_tokens} prompt tokens of the log's request {place}; it must keep the log's order"
            ) from None
        yield row - 1


def _keys(numbers: Ints, prompt_tokens: int, trace_tokens: int, block_tokens: int) -> tuple[bytes, ...]:
    """A trace's number stands for a whole prefix, so the last one of those that are joined stands for all."""
    parts, joined = sizes(trace_tokens, block_tokens)
    full = numbers[: prompt_tokens // trace_tokens][joined - 1 :: joined]
    return tuple(struct.pack(">QQ", _TOLD, number * parts + part) for number in full.tolist() for part in range(parts))
