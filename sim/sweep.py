"""The command `router sim sweep`: its options, its progress bar, and its table, JSON and CSV.

The one rule: results go to stdout, progress and notes to stderr. Not here: what is simulated (`curves`).
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sim.cost import DEFAULT_PROFILE, PROFILES, Profile
from sim.curves import Curve, Fleet, Limit, Sweep, swept
from sim.errors import OptionError
from sim.presets import preset_of
from sim.results import Result
from sim.traces.opening import read
from sim.traffic import PresetTraffic, TraceTraffic, Traffic

_DEFAULT_PRESET = "lesson"
_PRESET_OPTIONS = ("requests", "tenants", "salt", "volatile", "cache_outputs", "replay", "block_tokens")
_TRACE_ONLY = ("skip_bad", "trace_block_tokens", "time_unit", "tokenizer")
_TRACE_OPTIONS = ("requests", "skip_bad", "trace_block_tokens", "time_unit", "tokenize")
_TRACE_REPLICAS = 4
_FACTORS = (0.5, 1.0, 2.0, 4.0)
_POLICIES = "round-robin,user-hash,least-loaded,prefix-aware"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `router sim sweep`."""
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--preset", metavar="NAME", help=f"the kind of traffic ({_DEFAULT_PRESET})")
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="a log of requests; its times are stretched to a rate"
    )
    add("--rate", type=_numbers(float), metavar="R[,R...]", help="requests per second (0.5 to 4 times the traffic's)")
    add("--replicas", type=_numbers(int), metavar="N[,N...]", help="replicas (the preset's; 4 for a trace)")
    add(
        "--blocks",
        type=_numbers(int),
        metavar="N[,N...]",
        help="KV blocks of a replica (the preset's, or what the profile has room for)",
    )
    add("--policy", type=_words, default=_words(_POLICIES), metavar="NAME[,NAME...]", help=f"policies ({_POLICIES})")
    add("--profile", metavar="NAME", help="a model on a GPU (the preset's)")
    add("--limit", type=_limit, default=Limit(), metavar="WHAT", help="what a fleet must keep (ttft-p95=1)")
    add("--requests", type=int, metavar="N", help="requests of each simulation (the preset's)")
    add("--seed", type=int, default=1, metavar="N", help="of arrivals, lengths, contents and policies (%(default)s)")
    add("--seeds", type=_count, default=1, metavar="N", help="so many seeds; latencies are their means (%(default)s)")
    add("--block-size", type=int, dest="block_tokens", metavar="N", help="tokens in a block (16)")
    for option in ("--tenants", "--salt", "--volatile", "--cache-outputs", "--replay"):
        add(option, metavar="VALUE", help="as for `router sim`")
    add("--tokenizer", type=Path, metavar="FOLDER", help="tokenizer for the text of a trace")
    add("--skip-bad", action="store_true", default=None, help="leave bad rows of a trace out and count them")
    add("--trace-block-size", dest="trace_block_tokens", type=_count, metavar="N", help="tokens in a trace's block")
    add("--time-unit", choices=("s", "ms", "us", "ns"), help="unit of a trace's times")
    add("--no-search", action="store_true", help="leave out how many replicas each policy needs")
    add("--workers", type=int, metavar="N", help="processes (one for each core)")
    add("--json", action="store_true", help="print JSON, alone on stdout")
    add("--csv", type=Path, metavar="FILE", help="write every point as a row")


def main(arguments: argparse.Namespace) -> int:
    """Sweep and tell. Raises `OptionError` and `PolicyError` for what can't be used as asked."""
    found = _swept(arguments)
    for note in found.notes:
        sys.stderr.write(f"note: {note}\n")
    if arguments.csv:
        _write_csv(arguments.csv, found)
    if arguments.json:
        sys.stdout.write(json.dumps(told(found), indent=2) + "\n")
    else:
        _print(found)
    return 0


def _swept(arguments: argparse.Namespace) -> Sweep:
    traffic, replicas, blocks, profile, rate = (_of_trace if arguments.trace else _of_preset)(arguments)
    fleets = [
        Fleet(int(count), int(size), profile.name)
        for count in arguments.replicas or (replicas,)
        for size in arguments.blocks or (blocks,)
    ]
    rates = arguments.rate or tuple(rate * factor for factor in _FACTORS)
    with Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        return swept(
            traffic,
            fleets,
            rates,
            arguments.policy,
            limit=arguments.limit,
            seeds=range(arguments.seed, arguments.seed + arguments.seeds),
            workers=arguments.workers,
            search=not arguments.no_search,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
        )


_Source = tuple[Traffic, int, int, Profile, float]
"""Traffic, replicas and blocks where none are given, a profile, and the traffic's own rate."""


def _of_preset(arguments: argparse.Namespace) -> _Source:
    for name in _TRACE_ONLY:
        if getattr(arguments, name) is not None:
            raise OptionError(f"--{name.replace('_', '-')} has no meaning without --trace")
    known = preset_of(arguments.preset or _DEFAULT_PRESET)
    traffic = PresetTraffic(
        arguments.preset or _DEFAULT_PRESET, tuple(sorted(_given(arguments, _PRESET_OPTIONS).items()))
    )
    usual = known.defaults
    profile = _profile(arguments.profile or usual.profile)
    tokens = profile.capacity_tokens if arguments.profile else usual.blocks * known.options.block_tokens
    blocks = max(2, tokens // (arguments.block_tokens or known.options.block_tokens))
    return traffic, usual.replicas, blocks, profile, known.options.rate


def _of_trace(arguments: argparse.Namespace) -> _Source:
    for name in ("tenants", "salt", "volatile"):
        if getattr(arguments, name) is not None:
            raise OptionError(f"--{name} has no meaning with --trace")
    if arguments.replay not in (None, "timestamps", "think"):
        raise OptionError(f"{arguments.replay!r} is no way to replay a trace; use timestamps or think")
    profile = _profile(arguments.profile or DEFAULT_PROFILE)
    trace = read(arguments.trace, text_block_tokens=arguments.block_tokens or 16, **_given(arguments, _TRACE_OPTIONS))
    traffic = TraceTraffic(
        trace, arguments.replay or "timestamps", arguments.cache_outputs != "off", arguments.block_tokens
    )
    block_tokens = arguments.block_tokens or trace.table.block_tokens
    return traffic, _TRACE_REPLICAS, max(2, profile.capacity_tokens // block_tokens), profile, traffic.rate


def _given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(arguments, name, None)) is not None}


def _profile(name: str) -> Profile:
    if name not in PROFILES:
        raise OptionError(f"no profile is named {name!r}. There are: {', '.join(PROFILES)}")
    return PROFILES[name]


def told(found: Sweep) -> dict[str, Any]:
    """The sweep as one JSON object."""
    return {
        **found.traffic.told,
        "seeds": list(found.seeds),
        "limit": asdict(found.limit),
        "curves": [
            {
                "policy": curve.policy,
                **asdict(curve.fleet),
                "knee": curve.knee,
                "beyond": curve.beyond,
                "points": [
                    {"rate": rate, **_numbers_of(one), "spread": list(spread)}
                    for rate, one, spread in zip(curve.rates, curve.results, curve.spread, strict=True)
                ],
            }
            for curve in found.curves
        ],
        "needs": [asdict(need) for need in found.needs],
        "sentences": list(found.sentences),
        "notes": list(found.notes),
    }


def _numbers_of(one: Result) -> dict[str, Any]:
    left_out = ("policy", "routes", "tenants", "ttft_curve_s", "reasons")
    return {name: value for name, value in asdict(one).items() if name not in left_out}


def _write_csv(path: Path, found: Sweep) -> None:
    columns = ("policy", "replicas", "blocks", "rate", "hit_rate", "ttft_mean_s", "ttft_p50_s", "ttft_p95_s",
               "ttft_p99_s", "tpot_mean_s", "e2e_p95_s", "requests_per_s", "imbalance", "knee")  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        for curve in found.curves:
            for rate, one in zip(curve.rates, curve.results, strict=True):
                where = (curve.policy, curve.fleet.replicas, curve.fleet.blocks, rate)
                ttft = (one.ttft_s.mean, one.ttft_s.p50, one.ttft_s.p95, one.ttft_s.p99)
                rest = (one.tpot_s.mean, one.e2e_s.p95, one.requests_per_s, one.imbalance, curve.knee)
                rows.writerow((*where, one.hit_rate, *ttft, *rest))


def _print(found: Sweep) -> None:
    console = Console()
    rates = found.curves[0].rates
    limit = found.limit
    table = Table(title=f"{limit.quantity.upper()} {limit.point} in seconds by requests/s, {found.traffic.name}")
    for name in ("policy", "replicas", "blocks", *(f"{rate:g}/s" for rate in rates), "hit rate", "knee"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for curve in found.curves:
        fleet = curve.fleet
        latencies = (_latency(limit.of(one), *spread) for one, spread in zip(curve.results, curve.spread, strict=True))
        hit = curve.results[-1].hit_rate
        hit_rate = "unknown" if hit is None else f"{hit:.1%}"
        table.add_row(curve.policy, str(fleet.replicas), str(fleet.blocks), *latencies, hit_rate, _knee(curve))
    console.print(table)
    console.print(f"knee: requests/s at which {limit} is met; hit rate at {rates[-1]:g}/s")
    for sentence in found.sentences:
        console.print(sentence, style="bold", highlight=False)


def _latency(mean: float, least: float, most: float) -> str:
    return f"{mean:.3g}" if least == most else f"{mean:.3g} ±{(most - least) / 2:.1g}"


def _knee(curve: Curve) -> str:
    if curve.knee is None:
        return f"< {curve.rates[0]:g}"
    return f"> {curve.knee:g}" if curve.beyond else f"{curve.knee:.3g}"


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(kind: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    def numbers(text: str) -> tuple[float, ...]:
        found = tuple(kind(word) for word in _words(text))
        if not found or not all(0 < number < float("inf") for number in found):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0, as in 4,8,16")
        return found

    numbers.__name__ = "list of numbers"
    return numbers


def _limit(text: str) -> Limit:
    name, _, seconds = text.partition("=")
    quantity, _, point = name.lower().partition("-")
    try:
        limit = Limit(quantity, point or "p95", float(seconds))
    except ValueError:
        limit = Limit("", "", 0.0)
    if (
        quantity not in ("ttft", "tpot", "e2e")
        or limit.point not in ("mean", "p50", "p95", "p99")
        or not limit.seconds > 0
    ):
        raise argparse.ArgumentTypeError(f"{text!r} is no limit; write ttft-p95=1, tpot-mean=0.05, e2e-p99=30")
    return limit
