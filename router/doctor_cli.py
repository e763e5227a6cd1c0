"""`router doctor`: what breaks the prefix in files of prompts, or in what a running router sees.

Exit codes: 0 healthy, 1 something breaks the prefix, 2 can't be used as asked. The one rule: standard output holds the
report and nothing else; no prompt is shown unless `--show-text` asks for it. Not here: the doctor (`router.doctor`).
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.arguments import Arguments, count, json_argument

if TYPE_CHECKING:
    from router.doctor.exact import ModelTokens
    from router.doctor.parts import Asked
    from sim.traces.files import Progress

_BODY = ("body", "request", "payload", "request_body", "json")
_PROMPTS = ("messages", "prompt", "input")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    told = "request bodies, an OpenAI batch, a log or trace with prompts, a --record trace; two bodies are compared"
    add("files", metavar="FILE", nargs="*", type=Path, help=told)
    add("--url", metavar="URL", help="admin address of a running router: what its own doctor has seen")
    add("--tokenizer", type=Path, metavar="FOLDER", help="count the model's own tokens, of its rendered prompts")
    add("--block-tokens", type=count(1), default=16, help="tokens in a block (%(default)s)")
    add("--requests", type=count(1), metavar="COUNT", help="read so many requests at most")
    add("--show-text", action="store_true", help="show the values that differ instead of their shape")
    add("--skip-bad", action="store_true", help="leave out rows that can't be read")
    json_argument(parser)


def run(arguments: Arguments) -> int:
    """The command. Raises `UsageError` for what can't be read."""
    from router.doctor import report
    from router.errors import UsageError
    from sim.errors import SimError

    if bool(arguments.files) == bool(arguments.url):
        raise UsageError("give files to read, or --url with the admin address of a running router")
    if arguments.url:
        from msgspec import ValidationError

        from router.doctor.live_savings import with_savings

        try:
            told = with_savings(_fetched(arguments.url), _hits)
        except ValidationError:
            raise UsageError(
                f"{arguments.url} tells sketches of another form; is its router of this version?"
            ) from None
        return _printed(told, report.live_lines, as_json=arguments.json)
    try:
        return _examined(arguments)
    except SimError as error:
        raise UsageError(str(error)) from error


def _examined(arguments: Arguments) -> int:
    from router.doctor import report
    from router.doctor.checkup import Doctor
    from router.errors import UsageError

    with _progress(arguments.files) as told:
        asks = _asks(arguments.files, skip_bad=arguments.skip_bad, progress=told)
        if arguments.requests:
            asks = islice(asks, arguments.requests)
        first = list(islice(asks, 3))
        if not first:
            return _hashes_alone(arguments)
        tokens = None if arguments.tokenizer is None else _tokens(arguments.tokenizer, arguments.block_tokens)
        doctor = Doctor(tokens=tokens, block_tokens=arguments.block_tokens, pair=len(first) == 2)
        for ask in chain(first, asks):
            doctor.seen(ask)
    diagnosis = doctor.diagnosis(_hits, tokens.notes() if tokens is not None else ())
    if not diagnosis.requests:
        raise UsageError("no prompt was found in what was read")
    document = report.document(diagnosis, show_text=arguments.show_text)
    return _printed(document, report.lines, as_json=arguments.json)


def _hits(prompts: Iterable[tuple[int, Sequence[bytes]]], block_tokens: int) -> int:
    from sim.cache_replay import InfiniteCache, replayed

    return replayed(prompts, block_tokens, [InfiniteCache()]).hit_tokens


def _hashes_alone(arguments: Arguments) -> int:
    """Files that hold no text: what their block ids tell."""
    from router.doctor import hashes
    from router.errors import UsageError
    from sim.cache_replay import InfiniteCache, replayed
    from sim.traces.opening import read

    if len(arguments.files) != 1:
        raise UsageError("the files hold no prompts' text; of traces without text one can be read at a time")
    table = read(arguments.files[0], skip_bad=arguments.skip_bad, requests=arguments.requests).table
    size = table.block_tokens

    def hit_fraction(prompts: hashes.Prompts, replicas: int) -> float | None:
        return replayed(prompts, size, [InfiniteCache() for _ in range(replicas)]).hit_fraction

    prompts = [(tokens, list(blocks)) for tokens, blocks in table.prompts()] if table.has_prefixes else []
    found = hashes.sharing(prompts, size, hit_fraction)
    if found is None:
        raise UsageError(f"{arguments.files[0]} tells lengths only: no prefix analysis")
    document = {"breaks": False, "needs_text": True, **hashes.document(found)}
    return _printed(document, lambda _: hashes.lines(found), as_json=arguments.json)


# -- reading -----------------------------------------------------------------------------------------------------------


def _asks(files: Sequence[Path], *, skip_bad: bool, progress: "Progress | None") -> "Iterator[Asked]":
    """Every prompt with text, in file order. Raises `TraceError`."""
    for file in files:
        yield from _asks_of(file, skip_bad=skip_bad, progress=progress)


def _asks_of(file: Path, *, skip_bad: bool, progress: "Progress | None") -> "Iterator[Asked]":
    from router.doctor.parts import asked
    from sim.traces.files import items
    from sim.traces.format import Reader, Reading
    from sim.traces.formats import detected
    from sim.traces.rows import BadRow, LeftOut, TraceError

    reader: Reader | None = None
    for line, item in items(file, progress):
        try:
            if isinstance(item, BadRow):
                raise item
            told = _body(item)
            if told is not None:
                yield asked(*told)
                continue
            if reader is None:
                known = detected(item)
                if known is None:
                    raise BadRow("neither a request body nor a row of a known trace format")
                reader = known.reader(Reading())
            for row in reader(item):
                if row.ask is not None:
                    body = {"model": row.model, **row.ask.body} if row.model else row.ask.body
                    yield asked(row.ask.route, body, row.time_s)
        except LeftOut:
            continue
        except BadRow as bad:
            if not skip_bad:
                more = f" ({bad.detail})" if bad.detail else ""
                raise TraceError(f"{file}, line {line}: {bad.reason}{more}; --skip-bad leaves such rows out") from None


def _body(item: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Route and request body, where the row is one or holds one; None for other rows."""
    from router.openai import CHAT, COMPLETIONS

    for name in _BODY:
        inner = item.get(name)
        if isinstance(inner, Mapping) and any(member in inner for member in _PROMPTS):
            route = item.get("url") or item.get("path") or item.get("route")
            return (route if isinstance(route, str) else CHAT if "messages" in inner else COMPLETIONS), inner
    messages = item.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        ours = "model" in item or messages[-1].get("role") != "assistant"
        return (CHAT, item) if ours and not {"startTime", "call_type", "text_input"} & item.keys() else None
    if "model" in item and isinstance(item.get("prompt", item.get("input")), str | list) and "usage" not in item:
        known = {"timestamp", "startTime", "start_time", "prompt_tokens"} & item.keys()
        return None if known else (COMPLETIONS, item)
    return None


def _tokens(folder: Path, block_tokens: int) -> "ModelTokens":
    from router.doctor.exact import ModelTokens
    from router.errors import UsageError
    from router.readers import local_reader
    from router.templates import TemplateError
    from router.tokenizers import TokenizerError

    try:
        return ModelTokens(local_reader(folder, block_tokens=block_tokens))
    except (TokenizerError, TemplateError) as error:
        raise UsageError(f"--tokenizer {error}") from error


@contextmanager
def _progress(files: Sequence[Path]) -> "Iterator[Progress | None]":
    """A bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("reading" if len(files) == 1 else f"reading {len(files)} files", total=None)
        yield lambda done, size: bars.update(bar, completed=done, total=size)


# -- a running router --------------------------------------------------------------------------------------------------


def _fetched(url: str) -> dict[str, Any]:
    """What `GET /doctor` of an admin port answers."""
    import asyncio

    from router.doctor.asking import fetched

    return asyncio.run(fetched(url.rstrip("/")))


def _printed(document: dict[str, Any], lines: Callable[[dict[str, Any]], Iterable[str]], *, as_json: bool) -> int:
    import orjson

    if as_json:
        data = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    else:
        data = "".join(f"{line}\n" for line in lines(document)).encode("utf-8", "replace")
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
    return 1 if document.get("breaks") else 0
