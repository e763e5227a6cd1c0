"""`router sim calibrate`: how long the engine around the kernels takes, fitted to a log of a real server.

A profile's kernel times stay; the log is replayed through the engine model with other d0 (seconds a step), d1 (a
sequence and step) and front end (seconds a request, outside of its steps): a simplex over d0 and d1, begun anew where
it ends since the loss is rugged, and the front end in closed form. A factor on the kernels' compute (cg and ca) is
fitted only when asked for. The loss is the relative error of the percentiles of TTFT, TPOT and end-to-end time, large
ones weighing most (the root of the mean fourth power), and that of every request's TPOT. The one rule: trust d0 + d1
times the usual batch; how it is split between them a log of one load hardly tells. Not here: reading logs
(`engine_logs`, `engine_prompts`), and what is printed.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.cost import DEFAULT_PROFILE, PROFILES, Profile
from sim.engine_logs import EngineLog, read_log
from sim.engine_prompts import told
from sim.errors import JobRefused, OptionError
from sim.replay import Sent, Timings, replayed
from sim.report_calibration import Calibration, Error, Knobs, printed, written
from sim.simplex import lowest

POINTS = ("mean", "p10", "p25", "p50", "p75", "p90", "p95", "p99")
QUANTITIES = ("ttft", "tpot", "e2e")

_Floats = NDArray[np.float64]
_STEP_S = 1e-3
_SEQUENCE_S = 20e-6
"""Units of the search: what d0 and d1 usually are."""
_REPLAYS_A_KNOB = 45


@dataclass(frozen=True, slots=True)
class Engine:
    """The server that wrote the log. `blocks` counts the null block, as `num_gpu_blocks` does."""

    blocks: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    async_scheduling: bool = True


def calibrated(
    log: EngineLog, profile: Profile, engine: Engine, *, hold_out: bool = False, fit_compute: bool = False
) -> Calibration:
    """Fit the three knobs, and the factor with `fit_compute`. With `hold_out` every other request is only measured.

    `JobRefused` when a request of the log does not fit in `engine.blocks`.
    """
    everybody = np.arange(len(log.sent))
    fitted, judged = (everybody[::2], everybody[1::2]) if hold_out and len(everybody) > 1 else (everybody, everybody)
    truth = _statistics(log.took, fitted)
    replays = 0

    def run(knobs: Knobs) -> Timings:
        nonlocal replays
        replays += 1
        return _replayed(log.sent, _turned(profile, knobs), engine)

    def loss(point: _Floats) -> float:
        if min(point) < 0:
            return math.inf
        took = run(_knobs(point))
        seen = _later(_statistics(took, fitted), _front_s(took, log.took, fitted))
        alike = _relative(took.tpot_s[fitted], log.took.tpot_s[fitted])
        return float(np.mean(_relative(seen, truth) ** 4) ** 0.5 + np.mean(alike**2))

    before = Knobs(profile.d0_s, profile.d1_s, profile.front_s)
    start = np.array([before.d0_s / _STEP_S, before.d1_s / _SEQUENCE_S, *([1.0] if fit_compute else [])])
    near = lowest(loss, start, most=_REPLAYS_A_KNOB * len(start))
    best = _knobs(lowest(loss, near, most=_REPLAYS_A_KNOB))
    end = run(best)
    after = replace(best, front_s=_front_s(end, log.took, fitted))
    return Calibration(
        profile=profile.name,
        requests=len(log.sent),
        skipped=log.skipped,
        why=log.why,
        held_out=len(judged) if hold_out else 0,
        prompt_tokens=sum(request.prompt_tokens for request in log.sent),
        cached_tokens=end.cached_tokens if any(request.begins for request in log.sent) else None,
        preemptions=end.preemptions,
        before=before,
        after=after,
        errors=_errors(
            _statistics(log.took, judged),
            _statistics(run(Knobs(0.0, 0.0, 0.0)), judged),
            _later(_statistics(run(before), judged), before.front_s),
            _later(_statistics(end, judged), after.front_s),
        ),
        replays=replays,
    )


def _knobs(point: _Floats) -> Knobs:
    """A point of the search: d0 and d1 in its units, and a factor when it is looked for."""
    d0, d1, *factor = point.tolist()
    return Knobs(d0 * _STEP_S, d1 * _SEQUENCE_S, 0.0, *factor)


def _turned(profile: Profile, knobs: Knobs) -> Profile:
    factor = knobs.compute_factor
    return replace(profile, d0_s=knobs.d0_s, d1_s=knobs.d1_s, cg_s=profile.cg_s * factor, ca_s=profile.ca_s * factor)


def _replayed(sent: Sequence[Sent], profile: Profile, engine: Engine) -> Timings:
    return replayed(
        sent,
        profile,
        engine.blocks,
        block_tokens=engine.block_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_batched_tokens=engine.max_batched_tokens,
        async_scheduling=engine.async_scheduling,
    )


def _errors(real: _Floats, *models: _Floats) -> tuple[Error, ...]:
    off = [_relative(model, real) for model in models]
    return tuple(
        Error(quantity, point, float(real[row, column]), *(float(each[row, column]) for each in off))
        for row, quantity in enumerate(QUANTITIES)
        for column, point in enumerate(POINTS)
        if not math.isnan(real[row, column])
    )


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
    """The delay with the least relative error of each request's TTFT; never negative.

    The sum of errors, not of their squares: a server's first step takes long, and is one of many.
    """
    late, weight = (real.ttft_s - model.ttft_s)[which], 1 / real.ttft_s[which]
    order = np.argsort(late)
    sums = np.cumsum(weight[order])
    return max(0.0, float(late[order][np.searchsorted(sums, sums[-1] / 2)]))


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `router sim calibrate`."""
    add = parser.add_argument
    add(
        "log", type=Path, metavar="LOG", help="JSONL or CSV, a result of `vllm bench serve`, or a recording of a router"
    )
    add("--replica", metavar="NAME", help="whose requests of a recording of several")
    add("--prompts", type=Path, metavar="TRACE", help="a trace of the log's requests, in its order: how prompts begin")
    add("--trace-block-size", dest="trace_block_tokens", type=_count(1), metavar="N", help="tokens in a trace's block")
    add("--profile", default=DEFAULT_PROFILE, metavar="NAME", help="whose kernel times hold (%(default)s)")
    add("--blocks", type=_count(2), metavar="N", help="the server's num_gpu_blocks (what fits beside the weights)")
    add("--block-size", type=_count(1), default=16, metavar="N", help="tokens in a block (%(default)s)")
    add("--max-num-seqs", type=_count(1), default=256, metavar="N", help="requests in one batch (%(default)s)")
    add("--max-num-batched-tokens", type=_count(1), default=8192, metavar="N", help="tokens in one step (%(default)s)")
    add("--sync-scheduling", action="store_true", help="the server ran with --no-async-scheduling, or before vLLM 0.14")
    add("--fit-compute", action="store_true", help="fit a factor on compute too: for a GPU, or links, nobody measured")
    add("--held-out", action="store_true", help="fit every other request, report the error of the rest")
    add("--json", action="store_true", help="print JSON, alone on stdout")


def _count(least: int) -> Callable[[str], int]:
    def counted(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return number

    counted.__name__ = "whole number"  # argparse says: invalid whole number value
    return counted


def main(arguments: argparse.Namespace) -> int:
    """Fit and tell. Raises `OptionError` for what can't be used, `OSError` for a log that can't be read."""
    profile = PROFILES.get(arguments.profile)
    if profile is None:
        raise OptionError(f"no profile is named {arguments.profile!r}. There are: {', '.join(PROFILES)}")
    size, budget = arguments.block_size, arguments.max_num_batched_tokens
    if budget < arguments.max_num_seqs:
        raise OptionError(
            f"--max-num-batched-tokens {budget} is less than --max-num-seqs {arguments.max_num_seqs}: no engine runs so"
        )
    if arguments.trace_block_tokens and not arguments.prompts:
        raise OptionError("--trace-block-size has no meaning without --prompts")
    log = read_log(arguments.log, replica=arguments.replica)
    if arguments.replica and log.rows is None:
        raise OptionError("--replica has no meaning here: only a recording of `router serve --record` names replicas")
    if arguments.prompts:
        sent = told(log.sent, arguments.prompts, size, trace_block_tokens=arguments.trace_block_tokens)
        log = replace(log, sent=sent)
    elif log.rows is not None:
        log = replace(log, sent=told(log.sent, arguments.log, size, rows=log.rows))
    blocks = arguments.blocks or profile.capacity_tokens // size
    engine = Engine(blocks, size, arguments.max_num_seqs, budget, not arguments.sync_scheduling)
    try:
        found = calibrated(log, profile, engine, hold_out=arguments.held_out, fit_compute=arguments.fit_compute)
    except JobRefused as refused:
        raise OptionError(f"{arguments.log}: {refused}; --blocks is the server's num_gpu_blocks") from None
    if arguments.json:
        written(found, sys.stdout)
    else:
        printed(found)
    return 0
