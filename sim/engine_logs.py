"""Logs of what a real engine took for each request, read for calibration.

    rows      JSONL or CSV, one request each, told by its columns (`_COLUMNS`): when it came, its tokens, and when or
              after how long its first and last token came
    result    what `vllm bench serve --save-result --save-detailed` writes: one object of lists
    recording what `router serve --record` writes; it tells how prompts begin, too (`engine_prompts`)

The one rule: seconds only; a request that failed or gave no token is left out and counted. Not here: what it is for.
"""

import csv
import gzip
import io
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim.errors import SimError
from sim.replay import Sent, Timings
from sim.traces.format import Reading
from sim.traces.recorded import SCHEMA, Recorded
from sim.traces.rows import BadRow, LeftOut


class LogError(SimError):
    """A log that can't be read as what an engine took."""


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What was sent, what it took, and how many requests were left out."""

    sent: tuple[Sent, ...]
    took: Timings
    skipped: int
    why: str = ""
    """What is wrong with the first one left out."""
    rows: tuple[int, ...] | None = None
    """Places of the requests among those of a recording; None for a log of another kind."""


_COLUMNS = {
    "queued": ("queued_ts", "queued_s"),
    "arrival": ("arrival", "arrival_s", "arrival_time", "start_time", "timestamp", "time_s"),
    "prompt": ("prompt_tokens", "input_toks", "input_tokens", "input_len", "input_length"),
    "output": ("output_tokens", "output_toks", "completion_tokens", "output_len", "output_length"),
    "ttft": ("ttft", "ttft_s"),
    "e2e": ("e2e", "e2e_s", "latency", "e2el"),
    "first": ("first_token_ts", "first_token_s", "first_s"),
    "last": ("last_token_ts", "last_token_s", "last_s", "end_s"),
}
_WANTED = (
    "it needs a column for the arrival, prompt tokens, output tokens, and for the times of first and last token"
    " (arrival, prompt_tokens, output_tokens, ttft, e2e)"
)
_Row = tuple[int, Mapping[str, Any]]
"""A line or place in the file, and what stands there."""


def read_log(path: Path, *, replica: str | None = None) -> EngineLog:
    """The requests of a log, plain or .gz; `replica` is whose, where a recording has those of several.

    Raises `LogError` with file, line and reason; `OSError` for no file.
    """
    text = _text(path)
    if not text.strip():
        raise LogError(f"{path}: the log is empty")
    if not text.lstrip().startswith("{"):
        return _log(path, enumerate(csv.DictReader(io.StringIO(text)), 2))
    whole = _object(text)
    if whole is not None and isinstance(whole.get("ttfts"), list):
        return _log(path, _of_result(path, whole))
    rows = _objects(path, text)
    first = next(rows)
    rows = itertools.chain([first], rows)
    return _recording(path, rows, replica) if first[1].get("schema") == SCHEMA else _log(path, rows)


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LogError(f"{path}: it can't be unpacked ({error}); give a whole .gz file, or a plain one") from None
    except UnicodeDecodeError:
        raise LogError(f"{path}: this is no text; give JSON lines or CSV, plain or as .gz") from None


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _objects(path: Path, text: str) -> Iterator[_Row]:
    for line, row in enumerate(text.splitlines(), 1):
        if row.strip():
            found = _object(row)
            if found is None:
                raise LogError(f"{path}:{line}: this is no JSON object; write one request a line")
            yield line, found


def _of_result(path: Path, result: Mapping[str, Any]) -> Iterator[_Row]:
    names = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
    missing = [name for name in names if not isinstance(result.get(name), list)]
    if missing:
        raise LogError(
            f"{path}: the benchmark's result has no {', '.join(missing)};"
            " run a recent `vllm bench serve` with --save-result --save-detailed"
        )
    rows = zip(*(result[name] for name in names), strict=False)
    for place, (start_s, prompt, output, ttft_s, gaps_s) in enumerate(rows):
        row = {"arrival": start_s, "prompt_tokens": prompt, "output_tokens": output, "ttft": ttft_s}
        yield place, {**row, "e2e": ttft_s + sum(gaps_s)}


def _recording(path: Path, rows: Iterable[_Row], replica: str | None) -> EngineLog:
    read = Recorded(Reading())
    told: list[_Row] = []
    places: list[int] = []
    replicas: set[str] = set()
    count = failed = 0
    for line, item in rows:
        try:
            found = list(read(item))
        except LeftOut:
            failed += 1
            continue
        except BadRow as bad:
            raise LogError(f"{path}:{line}: {bad.reason}") from None
        for row in found:
            name = str(item.get("replica", ""))
            if replica in (None, name):
                replicas.add(name)
                places.append(count)
                told.append((line, _columns(row.time_s, row.prompt_tokens, row.output_tokens, row.ttft_s, row.took_s)))
            count += 1
    if len(replicas) > 1:
        raise LogError(f"{path}: it has requests of {', '.join(sorted(replicas))}; choose one with --replica")
    if not told:
        whose = f" of a replica {replica!r}" if replica else ""
        raise LogError(f"{path}: the recording has no answered request{whose}")
    log = _log(path, told, places)
    return replace(log, skipped=log.skipped + failed)


def _columns(*values: float | None) -> dict[str, float | None]:
    return dict(zip(("arrival", "prompt_tokens", "output_tokens", "ttft", "e2e"), values, strict=True))


def _log(path: Path, rows: Iterable[_Row], places: Sequence[int] | None = None) -> EngineLog:
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise LogError(f"{path}: the log has no requests")
    columns = _columns_of(path, first[1])
    begun = "queued" if "queued" in columns else "arrival"
    sent, firsts, lasts, kept = [], [], [], []
    wrong: list[str] = []
    for number, (line, row) in enumerate(itertools.chain([first], rows)):
        try:
            value = {name: _number(row, column) for name, column in columns.items()}
            begun_s = value[begun]
            first_s = value["first"] if "first" in value else begun_s + value["ttft"]
            last_s = value["last"] if "last" in value else begun_s + value["e2e"]
            _check(columns, value, first_s - begun_s, last_s - first_s)
        except ValueError as error:
            wrong.append(f"{path}:{line}: {error}")
            continue
        sent.append(Sent(begun_s, int(value["prompt"]), int(value["output"])))
        firsts.append(first_s)
        lasts.append(last_s)
        kept.append(number)
    why = wrong[0] if wrong else ""
    if not sent:
        raise LogError(f"none of {len(wrong)} requests can be used; the first: {why}")
    took = Timings.of(firsts, lasts, sent, 0)
    where = None if places is None else tuple(places[number] for number in kept)
    return EngineLog(tuple(sent), took, len(wrong), why, where)


def _number(row: Mapping[str, Any], column: str) -> float:
    told = row.get(column)
    try:
        value = float(told)  # type: ignore[arg-type] # what is no number is refused
    except (TypeError, ValueError):
        raise ValueError(f"{column} is {told!r}, which is no number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column} is {value}")
    return value


def _check(columns: Mapping[str, str], value: Mapping[str, float], ttft_s: float, rest_s: float) -> None:
    """Raise `ValueError` for a request without tokens, or whose times are not one after the other."""
    for name in ("prompt", "output"):
        if value[name] < 1:
            raise ValueError(f"{columns[name]} is {value[name]:g}: a request has one token at least")
    first, last = (columns[name] for name in (("first", "last") if "first" in columns else ("ttft", "e2e")))
    if ttft_s <= 0:
        raise ValueError(f"by its {first} the first token came {-ttft_s:g} s before the request")
    if rest_s < 0:
        raise ValueError(f"by its {last} the last token came {-rest_s:g} s before the first")


def _columns_of(path: Path, row: Mapping[str, Any]) -> dict[str, str]:
    """Which column tells what: the engine's clock is preferred, and times to durations."""
    found = {name: column for name, known in _COLUMNS.items() if (column := _first(known, row))}
    begun = "queued" if "queued" in found and "first" in found else "arrival"
    ends = ("first", "last") if begun == "queued" or "first" in found else ("ttft", "e2e")
    wanted: Sequence[str] = (begun, "prompt", "output", *ends)
    missing = [name for name in wanted if name not in found]
    if missing:
        has = ", ".join(str(column) for column in itertools.islice(row, 12))
        raise LogError(f"{path}: nothing tells the {', '.join(missing)} of a request; it has {has}; {_WANTED}")
    return {name: found[name] for name in wanted}


def _first(known: Sequence[str], row: Mapping[str, Any]) -> str | None:
    return next((column for column in known if column in row), None)
