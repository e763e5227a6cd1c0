"""A trace file as rows: plain or gzip, JSON lines, one JSON list or document, or CSV with a header.

The one rule: a file is read once from its beginning and never whole, except one that is a single JSON object. A line
that is no row is passed on as a `BadRow` in its place. Not here: what the rows mean.
"""

import csv
import gzip
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import orjson

from sim.traces.rows import BadRow, Item, TraceError

Progress = Callable[[int, int], None]
"""Told bytes read and bytes there are, of the file as it lies on disk."""

_TELL_EVERY = 1024
_LISTS = ("data", "observations")
"""Members in which exports wrap their list."""


def items(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, Item | BadRow]]:
    """Rows with their line, from 1, or their place in a list. Raises `TraceError` for a file that can't be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = io.BufferedReader(cast("Any", gzip.GzipFile(fileobj=file))) if zipped else file
            for count, found in enumerate(_rows(stream)):
                if progress is not None and count % _TELL_EVERY == 0:
                    progress(min(file.tell(), size), size)
                yield found
            if progress is not None:
                progress(size, size)
    except (OSError, EOFError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{path}: can't be read: {said}") from None


def _rows(stream: IO[bytes]) -> Iterator[tuple[int, Item | BadRow]]:
    line, first = _first_line(stream)
    start = first.lstrip()[:1]
    if start == b"{":
        try:
            only = orjson.loads(first)
        except orjson.JSONDecodeError:
            yield from _document(first, stream, line)
        else:
            yield from _unwrapped(line, only)
            yield from _json_lines(stream, line)
    elif start == b"[":
        yield from _list(_Joined(first, stream))
    elif first:
        yield from _csv(first, stream, line)


def _first_line(stream: IO[bytes]) -> tuple[int, bytes]:
    for line, raw in enumerate(stream, start=1):
        if text := raw.removeprefix(b"\xef\xbb\xbf").strip():
            return line, text + b"\n"
    return 0, b""


def _json_lines(stream: IO[bytes], line: int) -> Iterator[tuple[int, Item | BadRow]]:
    for raw in stream:
        line += 1
        if not raw.strip():
            continue
        try:
            found = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            yield line, BadRow("not JSON", error.msg)
        else:
            yield line, found if isinstance(found, Mapping) else BadRow("no JSON object")


def _document(first: bytes, stream: IO[bytes], line: int) -> Iterator[tuple[int, Item | BadRow]]:
    """A file that is one JSON object over many lines, or JSON lines of which the first is broken."""
    second = stream.readline()
    try:
        orjson.loads(second)
    except orjson.JSONDecodeError:
        rest = first + second + stream.read()
        try:
            yield from _unwrapped(line, orjson.loads(rest))
        except orjson.JSONDecodeError as error:
            yield line, BadRow("not JSON", error.msg)
        return
    yield line, BadRow("not JSON")
    yield from _json_lines(cast("Any", _Joined(second, stream)), line)


def _unwrapped(line: int, found: Item) -> Iterator[tuple[int, Item | BadRow]]:
    held = [found[name] for name in _LISTS if isinstance(found.get(name), list)]
    if len(found) <= 3 and held and all(isinstance(item, Mapping) for item in held[0]):
        yield from enumerate(held[0], start=1)
    else:
        yield line, found


class _Joined:
    """Bytes already read, and then the stream they were read from."""

    def __init__(self, first: bytes, stream: IO[bytes]) -> None:
        self._first = first
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not size:
            return b""
        first, self._first = self._first, b""
        return first or self._stream.read(size)

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        yield from self._stream


def _list(stream: _Joined) -> Iterator[tuple[int, Item | BadRow]]:
    import ijson  # type: ignore[import-untyped] # ships no types

    place = 0
    try:
        for place, found in enumerate(ijson.items(stream, "item", use_float=True), start=1):
            yield place, found if isinstance(found, Mapping) else BadRow("no JSON object")
    except ijson.JSONError:
        yield place + 1, BadRow("not JSON")


def _csv(first: bytes, stream: IO[bytes], line: int) -> Iterator[tuple[int, Item | BadRow]]:
    header = [name.strip() for name in next(csv.reader([first.decode("utf-8", "replace")]))]
    if len(header) < 2:
        yield line, BadRow("neither JSON nor CSV with a header")
        return
    text = io.TextIOWrapper(cast("Any", stream), "utf-8", errors="replace", newline="")
    rows = csv.reader(text)
    try:
        for row in rows:
            if not row:
                continue
            if len(row) == len(header):
                yield line + rows.line_num, dict(zip(header, row, strict=True))
            else:
                yield line + rows.line_num, BadRow("another number of columns than the header")
    finally:
        text.detach()  # the file is its opener's to close
