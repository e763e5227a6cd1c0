"""`router sim calibrate`: how long the engine around the kernels takes, fitted to a log of a real server.

A profile's kernel times stay; the log is replayed through the engine model with other d0 (seconds a step), d1 (a
sequence and step) and front end (seconds a request, outside of its steps): Nelder and Mead's simplex (1965) over d0 and
d1, the front end in closed form. The loss is the mean squared relative error of the percentiles of TTFT, TPOT and
end-to-end time, and that of every request's TPOT. The one rule: trust d0 + d1 times the usual batch; how it is split
between them a log of one load hardly tells. Not here: reading logs (`engine_logs`).
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.cost import DEFAULT_PROFILE, PROFILES, Profile
from sim.engine_logs import EngineLog, read_log
from sim.errors import OptionError
from sim.replay import Timings, replayed

POINTS = ("mean", "p50", "p90", "p95", "p99")
QUANTITIES = ("ttft", "tpot", "e2e")

_Floats = NDArray[np.float64]
_STEP_S = 1e-3
_SEQUENCE_S = 20e-6
"""Units of the search: what d0 and d1 usually are."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The server that wrote the log. `blocks` counts the null block, as `num_gpu_blocks` does."""

    blocks: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    async_scheduling: bool = True


@dataclass(frozen=True, slots=True)
class Knobs:
    """What is fitted, in seconds."""

    d0_s: float
    d1_s: float
    front_s: float


@dataclass(frozen=True, slots=True)
class Error:
    """One statistic of the log, and how far the model is off, as a fraction of it."""

    quantity: str
    point: str
    real_s: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of a fit. `errors` are of the requests it did not see when a part was held out."""

    profile: str
    requests: int
    skipped: int
    held_out: int
    before: Knobs
    after: Knobs
    replays: int
    errors: tuple[Error, ...]

    @property
    def worst(self) -> float:
        return max(abs(error.after) for error in self.errors)


def calibrated(log: EngineLog, profile: Profile, engine: Engine, *, hold_out: bool = False) -> Calibration:
    """Fit the three knobs. With `hold_out` every other request is only used to measure the error.

    `JobRefused` when a request of the log does not fit in `engine.blocks`.
    """
    everybody = np.arange(len(log.sent))
    fitted, judged = (everybody[::2], everybody[1::2]) if hold_out and len(everybody) > 1 else (everybody, everybody)
    truth = _statistics(log.took, fitted)
    replays = 0

    def run(d0_s: float, d1_s: float) -> Timings:
        nonlocal replays
        replays += 1
        timed = replace(profile, d0_s=d0_s, d1_s=d1_s)
        return replayed(
            log.sent,
            timed,
            engine.blocks,
            block_tokens=engine.block_tokens,
            max_num_seqs=engine.max_num_seqs,
            max_batched_tokens=engine.max_batched_tokens,
            async_scheduling=engine.async_scheduling,
        )

    def loss(point: _Floats) -> float:
        if min(point) < 0:
            return math.inf
        d0_s, d1_s = (point * (_STEP_S, _SEQUENCE_S)).tolist()
        took = run(d0_s, d1_s)
        told = _later(_statistics(took, fitted), _front_s(took, log.took, fitted))
        alike = _relative(took.tpot_s[fitted], log.took.tpot_s[fitted])
        return float(np.mean(_relative(told, truth) ** 2) + np.mean(alike**2))

    best = lowest(loss, np.array([profile.d0_s / _STEP_S, profile.d1_s / _SEQUENCE_S]))
    d0_s, d1_s = (best * (_STEP_S, _SEQUENCE_S)).tolist()
    start, end = run(profile.d0_s, profile.d1_s), run(d0_s, d1_s)
    knobs = Knobs(d0_s, d1_s, _front_s(end, log.took, fitted))
    real = _statistics(log.took, judged)
    before = _relative(_statistics(start, judged), real)
    after = _relative(_later(_statistics(end, judged), knobs.front_s), real)
    return Calibration(
        profile=profile.name,
        requests=len(log.sent),
        skipped=log.skipped,
        held_out=len(judged) if hold_out else 0,
        before=Knobs(profile.d0_s, profile.d1_s, 0.0),
        after=knobs,
        replays=replays,
        errors=tuple(
            Error(quantity, point, float(real[row, column]), float(before[row, column]), float(after[row, column]))
            for row, quantity in enumerate(QUANTITIES)
            for column, point in enumerate(POINTS)
            if not math.isnan(real[row, column])
        ),
    )


def lowest(loss: Callable[[_Floats], float], start: _Floats, *, most: int = 90, close: float = 2e-3) -> _Floats:
    """The point of the least loss that Nelder and Mead's simplex finds, in `most` evaluations."""
    corners = [start, *(start + step for step in np.eye(len(start)) * np.maximum(1.0, start / 2))]
    known = [(loss(corner), corner) for corner in corners]
    asked = len(known)
    while asked < most:
        known.sort(key=lambda pair: pair[0])
        worst = known[-1]
        spread = max(float(np.abs(corner - known[0][1]).max()) for _, corner in known)
        if spread < close:
            break
        centre = np.mean([corner for _, corner in known[:-1]], axis=0)

        def tried(factor: float, centre: _Floats = centre, worst: _Floats = worst[1]) -> tuple[float, _Floats]:
            point = centre + factor * (centre - worst)
            return loss(point), point

        asked += 1
        ahead = tried(1.0)
        if ahead[0] < known[0][0]:
            asked += 1
            further = tried(2.0)
            known[-1] = min(ahead, further, key=lambda pair: pair[0])
        elif ahead[0] < known[-2][0]:
            known[-1] = ahead
        else:
            asked += 1
            nearer = tried(0.5) if ahead[0] < worst[0] else tried(-0.5)
            if nearer[0] < min(ahead[0], worst[0]):
                known[-1] = nearer
            else:
                best = known[0][1]
                known[1:] = [(loss(point), point) for point in ((best + corner) / 2 for _, corner in known[1:])]
                asked += len(known) - 1
    known.sort(key=lambda pair: pair[0])
    lowest_point: _Floats = known[0][1]
    return lowest_point


def _statistics(took: Timings, which: NDArray[np.int_]) -> _Floats:
    """A row for each of `QUANTITIES`, a column for each of `POINTS`; NaN for what no request has."""
    return np.array([_points(column[which]) for column in (took.ttft_s, took.tpot_s, took.e2e_s)])


def _points(column: _Floats) -> list[float]:
    known = column[~np.isnan(column)]
    if not len(known):
        return [math.nan] * len(POINTS)
    return [float(known.mean()), *np.percentile(known, [float(point[1:]) for point in POINTS[1:]]).tolist()]


def _relative(model: _Floats, real: _Floats) -> _Floats:
    """Errors as fractions; none where there is nothing to compare."""
    errors: _Floats = np.nan_to_num((model - real) / real)
    return errors


def _later(statistics: _Floats, front_s: float) -> _Floats:
    """What clients see of a run that begins so much later for every request."""
    later: _Floats = statistics + np.array([[front_s], [0.0], [front_s]])
    return later


def _front_s(model: Timings, real: Timings, which: NDArray[np.int_]) -> float:
    """The delay with the least squared relative error of each request's TTFT; the short ones tell. Never negative."""
    weight = 1 / real.ttft_s[which] ** 2
    return max(0.0, float(((real.ttft_s - model.ttft_s)[which] * weight).sum() / weight.sum()))


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `router sim calibrate`."""
    add = parser.add_argument
    add("log", type=Path, metavar="LOG", help="JSONL or CSV, a request a row, or the result of `vllm bench serve`")
    add("--profile", default=DEFAULT_PROFILE, metavar="NAME", help="whose kernel times hold (%(default)s)")
    add("--blocks", type=int, metavar="N", help="the server's num_gpu_blocks (what fits beside the weights)")
    add("--block-size", type=int, default=16, metavar="N", help="tokens in a block (%(default)s)")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="requests in one batch (%(default)s)")
    add("--max-num-batched-tokens", type=int, default=8192, metavar="N", help="tokens in one step (%(default)s)")
    add("--sync-scheduling", action="store_true", help="the server ran with --no-async-scheduling, or before vLLM 0.14")
    add("--held-out", action="store_true", help="fit every other request, report the error of the rest")
    add("--json", action="store_true", help="print JSON, alone on stdout")


def main(arguments: argparse.Namespace) -> int:
    """Fit and tell. Raises `OptionError` for what can't be used, `OSError` for a log that can't be read."""
    profile = PROFILES.get(arguments.profile)
    if profile is None:
        raise OptionError(f"no profile is named {arguments.profile!r}. There are: {', '.join(PROFILES)}")
    blocks = arguments.blocks or profile.capacity_tokens // arguments.block_size
    engine = Engine(
        blocks,
        arguments.block_size,
        arguments.max_num_seqs,
        arguments.max_num_batched_tokens,
        not arguments.sync_scheduling,
    )
    found = calibrated(read_log(arguments.log), profile, engine, hold_out=arguments.held_out)
    if arguments.json:
        sys.stdout.write(json.dumps({**asdict(found), "worst": found.worst}, indent=2) + "\n")
    else:
        _print(found)
    return 0


def _print(found: Calibration) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    skipped = f", {found.skipped} left out" if found.skipped else ""
    console.print(f"{found.requests} requests{skipped}; {found.replays} replays on {found.profile}")
    knobs = Table("knob", "before", "fitted")
    knobs.add_row("d0, per step", f"{found.before.d0_s * 1e3:.2f} ms", f"{found.after.d0_s * 1e3:.2f} ms")
    knobs.add_row("d1, per sequence and step", f"{found.before.d1_s * 1e6:.1f} us", f"{found.after.d1_s * 1e6:.1f} us")
    knobs.add_row("front end, per request", "0 ms", f"{found.after.front_s * 1e3:.1f} ms")
    console.print(knobs)
    of = f"of {found.held_out} requests held out" if found.held_out else "of the same requests"
    errors = Table("", "", "real", "error before", "error fitted", title=f"error {of}")
    for error in found.errors:
        row = (f"{error.real_s:.4f} s", f"{error.before:+.1%}", f"{error.after:+.1%}")
        errors.add_row(error.quantity.upper(), error.point, *row)
    console.print(errors)
    console.print(f"worst error {found.worst:.1%}")
