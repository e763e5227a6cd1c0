"""The default policy beside the field's, over loads x replicas x rates around the knee of each: a matrix to tune by.

    python bench/against_the_field.py --out FILE [--traces FOLDER] [--load NAME …] [--policy NAME …] [--report]

Loads are the presets and every trace of the folder. The knee of a load on a fleet is the rate at which `KNEE_OF` breaks
a p95 TTFT of 1 s, but at least twice and at most five times the unloaded one; it is searched once and kept. FILE gets a
line for each run, and only what it lacks is run: stop it and go on when you like. A change of the simulator or of a
policy wants a new FILE. `--report` tells what FILE holds, and where `--of` is more than 5 % behind the best, delivers
less than 97 % of the hits of the best policy or of one cache as large as all together, or is behind round robin; all
of it averaged over seeds. The whole, 162 cells with three seeds, takes a quarter of an hour of CPU compiled.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from policies.plugins import load as policy_called
from sim.arrivals import Workload
from sim.cache_replay import LruCache
from sim.cost import DEFAULT_PROFILE, PROFILES
from sim.curves import knee_of
from sim.presets import PRESETS, preset
from sim.results import Limits, result
from sim.run import Setup, simulate
from sim.traces.opening import Trace, read, workload_of
from sim.traces.replays import Pace

LEADERS = (
    "prefix-aware",
    "lmetric",
    "preble-e2",
    "cache-aware",
    "sticky-until-saturated",
    "linear-cost",
    "dualmap",
    "least-loaded",
    "user-hash",
    "round-robin",
)
FIELD = (*LEADERS, "weighted-scorers", "prefix-hash", "power-of-two", "random")
"""Those that are no leaders lead the others nowhere by more than 2.1 % (seed 1, all cells): `--policy` runs them."""
KNEE_OF = "prefix-aware"
LIMIT_S, TWICE, FIVE_TIMES = 1.0, 2.0, 5.0
MOST_RATE = 4_000.0
TRACE_TOKENS = 1_024_000
"""KV tokens of a replica under a trace; a preset names its own fleet."""
LEFT_OUT = ("tenants-stages",)  # its rates are part of it
WITHIN, HITS = 1.05, 0.97

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One load on one fleet. `load` is a preset's name or a trace's path."""

    load: str
    replicas: int
    requests: int
    seed: int = 1

    @property
    def name(self) -> str:
        return Path(self.load).name.split(".")[0][:36]

    @property
    def key(self) -> tuple[str, int, int]:
        return self.name, self.replicas, self.seed

    def workload(self, rate: float, requests: int | None = None) -> Workload:
        """The first requests of the load at this rate, kept in memory so that every policy meets the same objects."""
        wanted = requests or self.requests
        if self.load in PRESETS:
            most = PRESETS[self.load].most_requests
            whole = preset(self.load, requests=min(wanted, most or wanted), rate=rate, seed=self.seed)
        else:
            whole = workload_of(_read(self.load), Pace(rate=rate, spread_ticks=True, idle_cap_s=60.0, seed=self.seed))
        return replace(whole, arrivals=tuple(itertools.islice(whole.arrivals, wanted)), requests=wanted)

    def setup(self, block_tokens: int) -> Setup:
        if self.load in PRESETS:
            fleet = PRESETS[self.load].defaults
            return Setup(self.replicas, fleet.blocks, PROFILES[fleet.profile], seed=self.seed)
        blocks = TRACE_TOKENS // block_tokens + 1
        return Setup(self.replicas, blocks, PROFILES[DEFAULT_PROFILE], seed=self.seed)

    def run(self, policy: str, workload: Workload) -> Record:
        outcome = simulate(workload, policy_called(policy, seed=self.seed), self.setup(workload.block_tokens))
        told = result(policy, outcome, limits=Limits(), has_prefixes=workload.has_prefixes)
        ttft, e2e = told.ttft_s, told.e2e_s
        return {
            "policy": policy,
            "hit": told.hit_rate,
            "mean": ttft.mean,
            "p50": ttft.p50,
            "p95": ttft.p95,
            "p99": ttft.p99,
            "e2e": e2e.mean,
            "tpot": told.tpot_s.mean,
            "imbalance": told.imbalance,
            "refused": told.refused,
        }

    def knee(self, near: float | None) -> float:
        """By doubling from a rate that is surely low, or about `near`, then halving, then as `router sim sweep`."""
        low = self.usual_rate / 8
        unloaded_s = self.run(KNEE_OF, self.workload(low, 300))["p95"]
        limit_s = max(TWICE * unloaded_s, min(LIMIT_S, FIVE_TIMES * unloaded_s))
        below, above = (low, unloaded_s), (low, unloaded_s)
        while above[1] <= limit_s and above[0] < MOST_RATE:
            below, rate = above, 0.75 * near if near and above[0] < 0.75 * near else 2 * above[0]
            above = rate, self.run(KNEE_OF, self.workload(rate))["p95"]
        while above[0] > 1.3 * below[0] and above[1] > limit_s:
            rate = (above[0] * below[0]) ** 0.5
            middle = rate, self.run(KNEE_OF, self.workload(rate))["p95"]
            below, above = (middle, above) if middle[1] <= limit_s else (below, middle)
        return knee_of([below[0], above[0]], [below[1], above[1]], limit_s) or below[0]

    @property
    def usual_rate(self) -> float:
        """The preset's own, or one that keeps a tenth of the prefill busy, for this many replicas."""
        if self.load in PRESETS:
            known = PRESETS[self.load]
            return known.options.rate * self.replicas / known.defaults.replicas
        prompts = [arrival.prompt_tokens for arrival in self.workload(1.0, 300).arrivals]
        return 4_000 * self.replicas / statistics.fmean(prompts)


@lru_cache(maxsize=2)
def _read(path: str) -> Trace:
    return read(path, requests=15_000)


@lru_cache(maxsize=1)
def _loaded(cell: Cell, rate: float) -> Workload:
    return cell.workload(rate)


def ran(cell: Cell, knee: float | None, factor: float, policies: Sequence[str], near: float | None) -> list[Record]:
    """In a process of its own: the knee, or one rate under some policies with the hits that the caches allow."""
    where: Record = {"load": cell.name, "replicas": cell.replicas, "seed": cell.seed}
    if knee is None:
        return [{**where, "knee": cell.knee(near)}]
    workload = _loaded(cell, knee * factor)
    where |= {"factor": factor, "rate": knee * factor, "requests": cell.requests}
    found = []
    if LRU in policies and workload.has_prefixes:
        found.append({**where, "policy": LRU, "hit": allowed(workload, cell.setup(workload.block_tokens))})
    return found + [{**where, **cell.run(policy, workload)} for policy in policies if policy != LRU]


LRU = "one cache of all"


def allowed(workload: Workload, setup: Setup) -> float:
    """The hit rate of one cache as large as all together, prompts and answers filling it in the order of arrival."""
    cache = LruCache(setup.replicas * (setup.blocks - 1))
    prompt = hit = 0
    for arrival in workload.arrivals:
        hits = cache.served(arrival.keys)
        prompt += arrival.prompt_tokens
        hit += min(hits, (arrival.prompt_tokens - 1) // workload.block_tokens) * workload.block_tokens
    return hit / prompt


def records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def told_apart(one: Record) -> tuple[Any, ...]:
    return one["load"], one["replicas"], one["seed"], one.get("factor"), one.get("policy")


def filled(file: Path, cells: Sequence[Cell], factors: Sequence[float], policies: Sequence[str], workers: int) -> None:
    """Run what the file lacks."""
    with (
        file.open("a") as out,
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as bar,
    ):
        for what in ("knees", "cells"):
            known = records(file)
            knees = {told_apart(one)[:3]: one["knee"] for one in known if "knee" in one}
            there = {told_apart(one) for one in known}
            jobs: list[tuple[Cell, float | None, float, list[str], float | None]] = []
            for cell in cells:
                knee = knees.get(cell.key)
                if what == "knees":
                    jobs += [(cell, None, 0.0, [], near(cell, knees))] if knee is None else []
                    continue
                for factor in factors:
                    lacking = [policy for policy in policies if (*cell.key, factor, policy) not in there]
                    jobs += [(cell, knee, factor, lacking, None)] if lacking else []
            task = bar.add_task(what, total=len(jobs))
            for ended in as_completed([pool.submit(ran, *job) for job in jobs]):
                for record in ended.result():
                    out.write(json.dumps(record) + "\n")
                out.flush()
                bar.advance(task)


def near(cell: Cell, knees: dict[tuple[Any, ...], float]) -> float | None:
    """What another fleet's knee lets expect."""
    known = {load: float(knee) / replicas for (load, replicas, _), knee in knees.items()}
    return known[cell.name] * cell.replicas if cell.name in known else None


def by_cell(found: Sequence[Record], of: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Record]]]:
    """Load, replicas and factor, with what each policy did there, averaged over the seeds that `of` was run with.

    A policy that lacks one of these is left out: its mean would be of other requests.
    """
    cells: dict[tuple[Any, ...], dict[str, list[Record]]] = {}
    for one in found:
        if "policy" in one:
            cells.setdefault((one["load"], one["replicas"], one["factor"]), {}).setdefault(one["policy"], []).append(
                one
            )
    for cell in sorted(cells):
        seeds = {one["seed"] for one in cells[cell].get(of, ())}
        alike = {policy: [one for one in several if one["seed"] in seeds] for policy, several in cells[cell].items()}
        yield cell, {policy: _averaged(several) for policy, several in alike.items() if len(several) == len(seeds) > 0}


def _averaged(several: Sequence[Record]) -> Record:
    numbers = [name for name, value in several[0].items() if isinstance(value, float)]
    return {**several[0], **{name: statistics.fmean(one[name] for one in several) for name in numbers}}


def report(found: Sequence[Record], of: str, quiet: bool) -> None:
    """The cells where `of` misses, then what share of them it keeps, and its mean ratios."""
    console = Console(width=160, highlight=False)
    ratios: dict[str, list[float]] = {"mean": [], "p99": [], "hits": [], "hits of best": [], "mean/rr": []}
    missed = dict.fromkeys(ratios, 0)
    for cell, policies in by_cell(found, of):
        field = {name: one for name, one in policies.items() if name in FIELD or name == of}
        own = field.get(of)
        if own is None or len(field) < 2:
            continue
        marks, faults = [], set()
        for what in ("mean", "p99"):
            best = min((float(one[what]), name) for name, one in field.items())[1]
            ratio = own[what] / field[best][what]
            ratios[what].append(ratio)
            marks.append(f"{what} {1000 * own[what]:8.0f} ms {ratio:5.2f} {best if best != of else '':22}")
            faults |= {what} if ratio > WITHIN else set()
        if (robin := field.get("round-robin")) is not None:
            ratios["mean/rr"].append(own["mean"] / robin["mean"])
            if max(own["mean"] / robin["mean"], own["p99"] / robin["p99"]) > 1.0:
                faults.add("mean/rr")
        if own["hit"] is not None:
            most = max(one["hit"] for one in field.values())
            could = policies.get(LRU, {}).get("hit")
            if most:
                ratios["hits of best"].append(own["hit"] / most)
                faults |= {"hits of best"} if own["hit"] < HITS * most else set()
            if could:
                ratios["hits"].append(own["hit"] / could)
                faults |= {"hits"} if own["hit"] < HITS * could else set()
            marks.append(f"hit {own['hit']:.3f} of {most:.3f} of {could or 0:.3f}")
        for fault in faults:
            missed[fault] += 1
        if faults and not quiet:
            load, replicas, factor = cell
            console.print(f"{load[:22]:22} {replicas:2} {factor:4g}x  {'  '.join(marks)}  {', '.join(sorted(faults))}")
    for name, values in ratios.items():
        if values:
            spread = f"geometric mean {statistics.geometric_mean(values):.4f}, {min(values):.3f} to {max(values):.3f}"
            console.print(f"{of}: {name:13} misses {missed[name]:3} of {len(values)}; {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--load", action="append", help="only these, by the beginning of their names")
    parser.add_argument("--policy", action="append", help="instead of those that lead anywhere")
    parser.add_argument("--replicas", type=lambda text: [int(part) for part in text.split(",")], default=[8, 4, 16])
    parser.add_argument(
        "--factor", type=lambda text: [float(part) for part in text.split(",")], default=[0.3, 1.0, 1.5]
    )
    parser.add_argument("--requests", type=int, default=900, help="on 8 replicas; 2/3 on fewer, 4/3 on more")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--of", default="prefix-aware")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    if not given.report:
        loads = [name for name in PRESETS if name not in LEFT_OUT]
        loads += (
            sorted(str(path) for path in given.traces.glob("*.gz") if "servegen" not in path.name)
            if given.traces
            else []
        )
        wanted = [load for load in loads if not given.load or Path(load).name.startswith(tuple(given.load))]
        cells = [
            Cell(load, replicas, given.requests * (2 if replicas < 8 else 3 if replicas == 8 else 4) // 3, seed)
            for seed in given.seed or [1, 2, 3]
            for replicas in given.replicas
            for load in wanted
        ]
        filled(given.out, cells, given.factor, given.policy or [LRU, *LEADERS], given.workers)
    report(records(given.out), given.of, given.quiet)


if __name__ == "__main__":
    main()
