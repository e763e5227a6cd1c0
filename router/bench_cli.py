"""`router bench`, from the command line to the exit code.

The one rule: standard output holds the result and nothing else; progress goes to standard error, and Ctrl-C ends the
load but not the report. Not here: what may be said
(`bench_arguments`), the load and its figures (`router.bench`).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from router.arguments import Arguments
from router.bench_arguments import REQUESTS

if TYPE_CHECKING:
    from router.bench.about import About
    from router.bench.groups import Group
    from router.bench.phases import Part, Phase, Plan, Watch
    from router.bench.report import Report

_RECORDED = (
    "requests duration rate seed prefix_tokens question_tokens prefixes max_tokens endpoint as_is timeout"
    " concurrency_limit same_prompts"
)


def run(given: Arguments) -> int:
    """The command. Raises `UsageError` and `RouterError` with a text for the user."""
    try:
        import uvloop
    except ImportError:
        report = asyncio.run(measured(given))
    else:
        report = uvloop.run(measured(given))
    _printed(report, given)
    return 130 if report.interrupted else int(report.failed)


async def measured(given: Arguments) -> "Report":
    """The whole run; until Ctrl-C, when that comes first."""
    from router.bench.about import about
    from router.bench.driver import connected
    from router.bench.phases import Side, parts, run, tried
    from router.bench.report import Report
    from router.bench.results import Target
    from router.errors import UsageError

    if bool(given.url) == bool(given.compare):
        raise UsageError("name a URL to measure, or two after --compare")
    if given.same_prompts and not given.compare:
        raise UsageError("--same-prompts has no meaning without --compare")
    urls = [_root(url) for url in given.url or given.compare]
    metrics = [_root(url) for url in given.metrics or ()]
    plan = _plan(given)
    own = _own_trace(given)
    phases: list[Phase] = []
    async with connected(_headers(given), given.timeout) as client, connected({}, given.timeout) as bare:
        sides = []
        for place, url in enumerate(urls):
            found = await about(client, url, given.model)
            groups = _groups(given, found, plan, own)
            sides.append(Side(chr(ord("A") + place), found, groups, tuple(metrics) or (url,)))
            await tried(client, sides[-1], plan)
        planned = tuple(parts(sides, plan))
        counting = bare if metrics else client
        with _progress(planned) as watch:
            interrupted = await _until_interrupted(run(client, planned, plan, watch, phases, counting=counting))
    return Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        sides=tuple(sides),
        plan=plan,
        target=Target(given.slo_ttft, given.slo_e2e),
        phases=tuple(phases),
        settings={name: getattr(given, name) for name in _RECORDED.split()},
        prompt_version=given.prompt_version,
        interrupted=interrupted,
    )


async def _until_interrupted(running: Any) -> bool:
    """Wait for it; whether Ctrl-C cancelled it."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(running)
    loop.add_signal_handler(signal.SIGINT, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        return True
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return False


def _plan(given: Arguments) -> "Plan":
    from router.bench.phases import Plan

    requests = given.requests or (None if given.duration else REQUESTS)
    turns = 2 if given.compare else 1
    return Plan(
        run=os.urandom(8).hex(),
        rates=given.rate,
        requests=None if requests is None else -(-requests // turns),
        duration_s=None if given.duration is None else given.duration / turns,
        seed=given.seed,
        in_flight=given.concurrency_limit,
        interleaved=bool(given.compare),
        shared_prompts=given.same_prompts,
    )


def _groups(given: Arguments, found: "About", plan: "Plan", trace: Any) -> "tuple[Group, ...]":
    from router.bench.groups import Made, Shape
    from router.bench.own import read_bodies, traced
    from router.errors import UsageError

    shape = Shape(
        model=found.model,
        endpoint=given.endpoint,
        prefix_tokens=given.prefix_tokens,
        question_tokens=given.question_tokens,
        max_tokens=given.max_tokens or 32,
        extra=given.extra,
        seed=given.seed,
    )
    has_own = given.file is not None or trace is not None
    most = plan.requests or 1_000_000
    groups: list[Group] = []
    for name in given.groups or ("shared", "unique", *(("own",) if has_own else ())):
        if name != "own":
            groups.append(Made(name, shape, given.prefixes if name == "shared" else None))
        elif given.file is not None:
            own = Shape(given.model, extra=given.extra)
            bodies = read_bodies(
                given.file, own, found.model, most=most, max_tokens=given.max_tokens, as_is=given.as_is
            )
            groups.append(bodies)
        elif trace is not None:
            size, limit = trace.block_tokens, given.max_tokens
            groups.append(traced(given.trace.name, trace.arrivals, size, shape, most=most, max_tokens=limit))
        else:
            raise UsageError("--groups own wants --file or --trace")
    return tuple(groups)


def _own_trace(given: Arguments) -> Any:
    """The workload of `--trace`; None without it."""
    if given.trace is None:
        return None
    from router.errors import RouterError, UsageError
    from sim.errors import SimError
    from sim.traces import open_trace

    try:
        opened = open_trace(given.trace, seed=given.seed)
    except SimError as error:
        raise RouterError(str(error)) from error
    if not opened.has_prefixes:
        raise UsageError(f"{given.trace} tells lengths only, no prefixes; use the group unique at its rate instead")
    return opened


def _printed(report: "Report", given: Arguments) -> None:
    from rich.console import Console

    from router.bench.report import as_json, tables

    if given.html is not None:
        from router.bench.report_html import page

        given.html.write_text(page(report), encoding="utf-8")
        sys.stderr.write(f"router: wrote {given.html}\n")
    if given.json:
        import orjson

        sys.stdout.write(orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    width = None if sys.stdout.isatty() else 180
    Console(width=width, highlight=False).print(tables(report))


@contextmanager
def _progress(planned: "Sequence[Part]") -> "Iterator[Watch]":
    """A bar on standard error over all requests, with what runs and how much of it failed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from router.bench.driver import Answer

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    seconds = sum(part.due_s[-1] for part in planned if part.due_s)
    sys.stderr.write(f"router: {len(planned)} phases, {seconds:.0f} s or more\n")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=sum(len(part.due_s) for part in planned))
        failed = 0

        def watch(part: "Part") -> Any:
            def told(answer: Answer) -> None:
                nonlocal failed
                failed += bool(answer.error)
                bar.update(task, advance=1, description=part.label + (f", {failed} failed" if failed else ""))

            bar.update(task, description=part.label)
            return told

        yield watch


def _root(url: str) -> str:
    """The address without /v1. Raises `UsageError` that does not repeat what may be secret."""
    from router.errors import UsageError

    text = url if "://" in url else f"http://{url}"
    try:
        split = urlsplit(text)
        host, _ = split.hostname, split.port
    except ValueError:
        raise UsageError("a URL given has no usable host and port; write http://host:port") from None
    if "@" in split.netloc or split.query or split.fragment:
        raise UsageError(f"the URL of {host} has a user, key or query in it; name the key with --api-key-env instead")
    if split.scheme not in ("http", "https") or not host:
        raise UsageError(f"{url!r} is no HTTP address; write http://host:port")
    path = split.path.rstrip("/").removesuffix("/v1")
    return f"{split.scheme}://{split.netloc}{path}"


def _headers(given: Arguments) -> dict[str, str]:
    from router.errors import UsageError

    headers = {}
    for place, text in enumerate(given.header, 1):
        name, colon, value = text.partition(":")
        if not colon or not name.strip().isascii() or any(char in name for char in ' \t\r\n"') or "\n" in value:
            raise UsageError(f"header {place} is not of the form NAME:VALUE")
        headers[name] = value.strip()
    if given.api_key_env is not None:
        key = os.environ.get(given.api_key_env, "").strip()
        if not key:
            raise UsageError(f"the environment variable {given.api_key_env} holds no key")
        headers["Authorization"] = f"Bearer {key}"
    return headers
