"""`router sim`: policies on a preset or a trace in virtual time; `sim sweep` and `sim calibrate` beside it.

The one rule: standard output holds the result and nothing else; progress and notes of progress go to standard error.
Not here: the simulator (`sim`), whose modules are imported when a command needs them.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.arguments import Arguments
from router.sim_arguments import DEFAULT_POLICIES, DEFAULT_PRESET

if TYPE_CHECKING:
    from sim.arrivals import Workload
    from sim.compare import Comparison, Told
    from sim.run import Setup

WORKLOAD_OPTIONS = ("requests", "rate", "replay", "cache_outputs")
PRESET_OPTIONS = ("tenants", "salt", "volatile")
TRACE_OPTIONS = ("skip_bad", "trace_block_tokens", "time_unit", "answers")


def run(arguments: Arguments) -> int:
    """The command. Raises `UsageError` and `RouterError` with a text for the user."""
    from router.errors import RouterError, UsageError
    from sim.errors import OptionError, SimError

    try:
        more: Callable[[Arguments], int] | None = getattr(arguments, "sim_main", None)
        if more is not None and getattr(arguments, "tokenizer", None) is not None:
            arguments.tokenize = _tokenize(arguments.tokenizer)
        if more is None:
            return _described(arguments) if arguments.describe else _compared(arguments)
        return more(arguments)
    except OptionError as error:
        raise UsageError(str(error)) from error
    except SimError as error:
        raise RouterError(str(error)) from error


def _compared(arguments: Arguments) -> int:
    from sim.compare import compare, lesson_rows
    from sim.results import Limits

    is_lesson = arguments.trace is None and (arguments.preset or DEFAULT_PRESET) == "lesson"
    policies = _policies(arguments.policy or ["all" if is_lesson else DEFAULT_POLICIES])
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    workload_of = _workloads(arguments)
    setup = _setup(arguments, workload_of(arguments.seed).block_tokens)
    with _progress(len(policies) * len(seeds)) as told:
        comparison = compare(
            workload_of,
            policies,
            setup,
            source="preset" if arguments.trace is None else "trace",
            seeds=seeds,
            limits=Limits(arguments.slo_ttft, arguments.slo_tpot),
            with_bounds=not arguments.no_bounds,
            told=told,
        )
    if is_lesson:
        comparison = replace(comparison, lesson=lesson_rows(arguments.seed))
    _printed(comparison, arguments)
    return 0


def _described(arguments: Arguments) -> int:
    from router.errors import UsageError
    from sim import report_trace
    from sim.traces import describe

    if arguments.trace is None:
        raise UsageError("--describe tells what a trace holds: name one with --trace")
    options = _given(arguments, (*TRACE_OPTIONS, "requests"))
    if arguments.tokenizer is not None:
        options["tokenize"] = _tokenize(arguments.tokenizer)
    with _reading(arguments.trace) as told:
        found = describe(arguments.trace, text_block_tokens=arguments.block_size or 16, progress=told, **options)
    if arguments.json:
        sys.stdout.write(report_trace.as_json(found))
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(report_trace.table(found))
    for note in found.notes:
        sys.stderr.write(f"router: note: {note}\n")
    return 0


def _policies(given: Sequence[str]) -> list[str]:
    """The names asked for, each once; every one is loaded, so that a wrong one is told before anything runs."""
    from policies.plugins import installed, load

    names: list[str] = []
    for word in ",".join(given).split(","):
        names += [one.name for one in installed() if not one.problem] if word.strip() == "all" else [word.strip()]
    names = list(dict.fromkeys(name for name in names if name))
    for name in names:
        load(name)
    return names


def _setup(arguments: Arguments, block_tokens: int) -> "Setup":
    """The replicas asked for, else those of the preset; a cache as large as the profile's for a trace."""
    from router.errors import UsageError
    from sim.cost import DEFAULT_PROFILE, PROFILES
    from sim.presets import PresetDefaults, preset_of
    from sim.run import Setup
    from sim.setup import Belief

    usual = PresetDefaults(4, 0, DEFAULT_PROFILE)
    if arguments.trace is None:
        usual = preset_of(arguments.preset or DEFAULT_PRESET).defaults
    name = arguments.profile or usual.profile
    profile = PROFILES.get(name)
    if profile is None:
        close = get_close_matches(name, PROFILES, n=1) or [", ".join(PROFILES)]
        raise UsageError(f"no profile is named {name!r}; did you mean {close[0]}?")
    if arguments.max_num_seqs > arguments.max_num_batched_tokens:
        raise UsageError("--max-num-batched-tokens must be at least --max-num-seqs: each takes a token a step")
    tokens = usual.blocks * 16 if usual.blocks and not arguments.profile else profile.capacity_tokens
    return Setup(
        replicas=arguments.replicas or usual.replicas,
        blocks=arguments.blocks or max(2, tokens // block_tokens),
        profile=profile,
        max_num_seqs=arguments.max_num_seqs,
        max_batched_tokens=arguments.max_num_batched_tokens,
        async_scheduling=not arguments.sync_scheduling,
        belief=Belief(
            source=arguments.index,
            lag_s=arguments.event_lag,
            lost_fraction=arguments.event_loss,
            capacity_factor=None if arguments.index_capacity == "unknown" else arguments.index_capacity,
            speculative=not arguments.no_speculative,
            knows_answers=arguments.knows_answers,
            corrected=not arguments.no_correction,
            report_every_s=arguments.report_every,
        ),
        seed=arguments.seed,
    )


def _workloads(arguments: Arguments) -> "Callable[[int], Workload]":
    """The workload of a seed. A trace is read once: its seeds are the policies' own."""
    from sim.presets import preset
    from sim.traces import open_trace

    options = _given(arguments, WORKLOAD_OPTIONS)
    if arguments.block_size is not None:
        options["block_tokens"] = arguments.block_size
    if "cache_outputs" in options:
        options["cache_outputs"] = options["cache_outputs"] == "on"
    if arguments.trace is None:
        _refused(arguments, (*TRACE_OPTIONS, "tokenizer"), "--preset")
        name, options = arguments.preset or DEFAULT_PRESET, options | _given(arguments, PRESET_OPTIONS)
        return lambda seed: preset(name, seed=seed, **options)
    _refused(arguments, PRESET_OPTIONS, "--trace")
    options |= _given(arguments, TRACE_OPTIONS)
    if arguments.tokenizer is not None:
        options["tokenize"] = _tokenize(arguments.tokenizer)
    with _reading(arguments.trace) as told:
        opened = open_trace(arguments.trace, seed=arguments.seed, progress=told, **options)
    return lambda _: opened


def _given(arguments: Arguments, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _refused(arguments: Arguments, names: Sequence[str], source: str) -> None:
    from router.errors import UsageError

    for name in _given(arguments, names):
        raise UsageError(f"--{name.replace('_', '-')} has no meaning with {source}")


def _tokenize(folder: Path) -> Callable[[str, dict[str, Any]], list[int]]:
    from router.errors import UsageError
    from router.readers import local_reader
    from router.templates import TemplateError
    from router.tokenizers import TokenizerError

    try:
        return local_reader(folder, block_tokens=16).token_ids
    except (TokenizerError, TemplateError) as error:
        raise UsageError(f"--tokenizer {error}") from error


def _printed(comparison: "Comparison", arguments: Arguments) -> None:
    from sim import report_json

    if arguments.html is not None:
        from sim.report_html import page

        arguments.html.write_text(page(comparison), encoding="utf-8")
        sys.stderr.write(f"router: wrote {arguments.html}\n")
    if arguments.json:
        sys.stdout.write(report_json.as_json(comparison).decode())
    elif arguments.csv:
        sys.stdout.write(report_json.as_csv(comparison))
    else:
        from rich.console import Console

        from sim.report_table import tables

        width = None if sys.stdout.isatty() else 160
        Console(width=width, highlight=False).print(tables(comparison))
        return
    for note in comparison.notes:
        sys.stderr.write(f"router: note: {note}\n")


@contextmanager
def _progress(runs: int) -> "Iterator[Told]":
    """A line on standard error that says which policy runs and how far it is; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} requests"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{runs} runs")

        def told(name: str, seed: int, ended: int) -> None:
            bar.update(task, description=f"{name}, seed {seed}", completed=ended)

        yield told


@contextmanager
def _reading(trace: Path) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"reading {trace.name}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
