"""Logs of what a real engine took for each request, read for calibration.

    rows      JSONL or CSV, one request each, told by its columns (`_COLUMNS`): when it came, its tokens, and when or
              after how long its first and last token came
    result    what `vllm bench serve --save-result --save-detailed` writes: one object of lists

The one rule: seconds only; a request that failed or gave no token is left out and counted. Not here: what it is for.
"""

import csv
import gzip
import io
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import SimError
from sim.replay import Sent, Timings


class LogError(SimError):
    """A log that can't be read as what an engine took."""


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What was sent, what it took, and how many requests were left out."""

    sent: tuple[Sent, ...]
    took: Timings
    skipped: int


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


def read_log(path: Path) -> EngineLog:
    """The requests of a log, plain or .gz. Raises `LogError` with file, line and reason; `OSError` for no file."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    text = data.decode("utf-8-sig")
    if not text.strip():
        raise LogError(f"{path}: the log is empty")
    if text.lstrip().startswith("{"):
        whole = _object(text)
        if whole is not None and isinstance(whole.get("ttfts"), list):
            return _log(path, _of_result(path, whole))
        return _log(path, _objects(path, text))
    return _log(path, enumerate(csv.DictReader(io.StringIO(text)), 2))


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _objects(path: Path, text: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    for line, row in enumerate(text.splitlines(), 1):
        if row.strip():
            found = _object(row)
            if found is None:
                raise LogError(f"{path}:{line}: this is no JSON object; write one request a line")
            yield line, found


def _of_result(path: Path, result: Mapping[str, Any]) -> Iterable[tuple[int, Mapping[str, Any]]]:
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


def _log(path: Path, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> EngineLog:
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise LogError(f"{path}: the log has no requests")
    columns = _columns_of(path, first[1])
    begun = "queued" if "queued" in columns else "arrival"
    sent, firsts, lasts, skipped = [], [], [], 0
    for _, row in itertools.chain([first], rows):
        try:
            value = {name: float(row[column]) for name, column in columns.items()}
        except (KeyError, TypeError, ValueError):
            skipped += 1
            continue
        begun_s = value[begun]
        first_s = value["first"] if "first" in value else begun_s + value["ttft"]
        last_s = value["last"] if "last" in value else begun_s + value["e2e"]
        if not (value["prompt"] >= 1 and value["output"] >= 1 and begun_s < first_s <= last_s < math.inf):
            skipped += 1
            continue
        sent.append(Sent(begun_s, int(value["prompt"]), int(value["output"])))
        firsts.append(first_s)
        lasts.append(last_s)
    if not sent:
        raise LogError(f"{path}: none of its {skipped} requests has all of its numbers in order; {_WANTED}")
    return EngineLog(tuple(sent), Timings.of(firsts, lasts, sent, 0), skipped)


def _columns_of(path: Path, row: Mapping[str, Any]) -> dict[str, str]:
    """Which column tells what: the engine's clock is preferred, and times to durations."""
    found = {name: column for name, known in _COLUMNS.items() if (column := _first(known, row))}
    begun = "queued" if "queued" in found and "first" in found else "arrival"
    ends = ("first", "last") if begun == "queued" or "first" in found else ("ttft", "e2e")
    wanted: Sequence[str] = (begun, "prompt", "output", *ends)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise LogError(f"{path}: nothing tells the {', '.join(missing)} of a request; {_WANTED}")
    return {name: found[name] for name in wanted}


def _first(known: Sequence[str], row: Mapping[str, Any]) -> str | None:
    return next((column for column in known if column in row), None)
