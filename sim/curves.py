"""Sweeps: one kind of traffic over rates, replicas, cache sizes and policies, on all cores.

    curve     one policy on one fleet over the rates; its knee is the rate at which the chosen latency meets its limit,
              between two rates by the straight line through the logarithms of the latency
    needed    the fewest replicas of a policy that keep the limit at the highest rate, searched by halving

The one rule: every point is a simulation of its own, made from plain values, so that it may run in any process; a
sweep gives the same numbers on any number of cores. Not here: what a simulation is (`run`), and the command (`sweep`).
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from policies.plugins import load
from sim.cost import PROFILES
from sim.results import Limits, Result, Spread, averaged, result
from sim.run import Setup, simulate
from sim.traffic import Traffic

MOST_REPLICAS = 128

Progress = Callable[[int, int], None]
"""Told how many simulations have ended, and of how many in all."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a fleet must keep: `ttft`, `tpot` or `e2e`, its `mean`, `p50`, `p95` or `p99`."""

    quantity: str = "ttft"
    point: str = "p95"
    seconds: float = 1.0

    def of(self, found: Result) -> float:
        """The latency that is limited; without end when no request has one."""
        spread: Spread = getattr(found, f"{self.quantity}_s")
        value = getattr(spread, self.point)
        return math.inf if value is None else float(value)

    def __str__(self) -> str:
        return f"{self.quantity.upper()} {self.point} {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas; `blocks` of one, the null block too."""

    replicas: int
    blocks: int
    profile: str
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192

    def setup(self, seed: int) -> Setup:
        return Setup(
            replicas=self.replicas,
            blocks=self.blocks,
            profile=PROFILES[self.profile],
            max_num_seqs=self.max_num_seqs,
            max_batched_tokens=self.max_batched_tokens,
            seed=seed,
        )


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation."""

    traffic: Traffic
    fleet: Fleet
    rate: float
    policy: str
    seed: int = 1

    def simulated(self) -> Result:
        workload = self.traffic.at(self.rate, self.seed)
        outcome = simulate(workload, load(self.policy, seed=self.seed), self.fleet.setup(self.seed))
        found = result(self.policy, outcome, limits=Limits(), has_prefixes=workload.has_prefixes)
        return replace(found, routes=(), tenants=(), ttft_curve_s=())


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy on one fleet, by rising rates."""

    policy: str
    fleet: Fleet
    rates: tuple[float, ...]
    results: tuple[Result, ...]
    """Means over the seeds."""
    spread: tuple[tuple[float, float], ...]
    """The latency that is limited: least and most of the seeds, by rate."""
    knee: float | None
    """Requests per second at which the limit is met; None when it is broken from the lowest rate on."""
    beyond: bool
    """Whether the limit is kept at the highest rate too, so that the knee is higher."""


@dataclass(frozen=True, slots=True)
class Need:
    """The fewest replicas with which a policy keeps the limit at a rate; None when `MOST_REPLICAS` do not."""

    policy: str
    rate: float
    blocks: int
    replicas: int | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that was found."""

    traffic: Traffic
    seeds: tuple[int, ...]
    limit: Limit
    curves: tuple[Curve, ...]
    needs: tuple[Need, ...]
    notes: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the needs say, for each cache size: the most replicas against the fewest."""
        return tuple(
            sentence
            for blocks in sorted({need.blocks for need in self.needs})
            if (sentence := compared([need for need in self.needs if need.blocks == blocks], self.limit))
        )


def swept(
    traffic: Traffic,
    fleets: Sequence[Fleet],
    rates: Sequence[float],
    policies: Sequence[str],
    *,
    limit: Limit | None = None,
    seeds: Sequence[int] = (1,),
    workers: int | None = None,
    search: bool = True,
    progress: Progress | None = None,
) -> Sweep:
    """Simulate every combination; then, unless told not to, search the replicas that each policy needs.

    `workers` None takes a process for each core, 1 stays in this one. Raises `PresetError`, `PolicyError` and
    `SimError` before or while anything runs.
    """
    limit, progress = limit or Limit(), progress or (lambda *_: None)
    rates = sorted(set(rates))
    notes = traffic.notes(rates[-1], len(seeds))
    for policy in policies:
        load(policy, seed=seeds[0])
    points = [
        Point(traffic, fleet, rate, policy, seed)
        for fleet in fleets
        for policy in policies
        for rate in rates
        for seed in seeds
    ]
    hunts = [
        Hunt(tuple(Point(traffic, fleet, rates[-1], policy, seed) for seed in seeds), limit)
        for fleet in {fleet.blocks: fleet for fleet in fleets}.values()
        for policy in (policies if search else ())
    ]
    jobs: list[Point | Hunt] = [*hunts, *points]  # a hunt takes longest
    found = _all(jobs, workers, progress)
    needs = tuple(one for one in found[: len(hunts)] if isinstance(one, Need))
    results = {point: one for point, one in zip(points, found[len(hunts) :], strict=True) if isinstance(one, Result)}
    curves = tuple(
        _curve(
            policy,
            fleet,
            rates,
            [[results[Point(traffic, fleet, rate, policy, seed)] for seed in seeds] for rate in rates],
            limit,
        )
        for fleet in fleets
        for policy in policies
    )
    return Sweep(traffic, tuple(seeds), limit, curves, needs, notes)


@dataclass(frozen=True, slots=True)
class Hunt:
    """A search for the fewest replicas, from those of the points' fleet on. There is a point for each seed."""

    points: tuple[Point, ...]
    limit: Limit

    def simulated(self) -> Need:
        point = self.points[0]
        least, most = 0, point.fleet.replicas  # `least` breaks the limit
        while not self._keeps(most):
            if most >= MOST_REPLICAS:
                return Need(point.policy, point.rate, point.fleet.blocks, None)
            least, most = most, min(MOST_REPLICAS, 2 * most)
        while most - least > 1:
            middle = (least + most) // 2
            if self._keeps(middle):
                most = middle
            else:
                least = middle
        return Need(point.policy, point.rate, point.fleet.blocks, most)

    def _keeps(self, replicas: int) -> bool:
        fleet = replace(self.points[0].fleet, replicas=replicas)
        found = [self.limit.of(replace(point, fleet=fleet).simulated()) for point in self.points]
        return sum(found) / len(found) <= self.limit.seconds


def compared(needs: Sequence[Need], limit: Limit) -> str:
    """As in "12 replicas with round-robin = 7 with prefix-aware at 40 requests/s, TTFT p95 1 s", or less to say."""
    if len(needs) < 2:
        return ""
    at = f"at {needs[0].rate:g} requests/s, {limit}"
    by_replicas: dict[int, list[str]] = {}
    for need in needs:
        by_replicas.setdefault(need.replicas or MOST_REPLICAS + 1, []).append(need.policy)
    fewest, most = min(by_replicas), max(by_replicas)
    best, worst = (" or ".join(by_replicas[count]) for count in (fewest, most))
    if fewest > MOST_REPLICAS:
        return f"{MOST_REPLICAS} replicas are too few for every policy {at}"
    if fewest == most:
        return f"every policy needs {_replicas(most)} {at}"
    if most > MOST_REPLICAS:
        return f"{MOST_REPLICAS} replicas with {worst} are too few where {fewest} with {best} are enough {at}"
    return f"{_replicas(most)} with {worst} = {fewest} with {best} {at}"


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"


def _all(jobs: Sequence[Point | Hunt], workers: int | None, progress: Progress) -> list[Result | Need]:
    """What each of the jobs found, in their order."""
    progress(0, len(jobs))
    if workers == 1:
        done = []
        for job in jobs:
            done.append(job.simulated())
            progress(len(done), len(jobs))
        return done
    found: list[Result | Need | None] = [None] * len(jobs)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        places = {pool.submit(_simulated, job): place for place, job in enumerate(jobs)}
        try:
            for count, ended in enumerate(as_completed(places), 1):
                found[places[ended]] = ended.result()
                progress(count, len(jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [one for one in found if one is not None]


def _simulated(job: Point | Hunt) -> Result | Need:
    return job.simulated()


def _curve(
    policy: str, fleet: Fleet, rates: Sequence[float], results: Sequence[Sequence[Result]], limit: Limit
) -> Curve:
    """`results` of every rate, one for each seed."""
    seeded = [[limit.of(one) for one in seeds] for seeds in results]
    latencies = [sum(seeds) / len(seeds) for seeds in seeded]
    return Curve(
        policy,
        fleet,
        tuple(rates),
        tuple(averaged(seeds) for seeds in results),
        tuple((min(seeds), max(seeds)) for seeds in seeded),
        knee_of(rates, latencies, limit.seconds),
        latencies[-1] <= limit.seconds,
    )


def knee_of(rates: Sequence[float], latencies_s: Sequence[float], limit_s: float) -> float | None:
    """The rate at which a latency that was kept first breaks its limit; the last rate when it never does."""
    broken = next((place for place, latency_s in enumerate(latencies_s) if not latency_s <= limit_s), None)
    if broken is None:
        return rates[-1]
    if broken == 0:
        return None
    before, after = max(latencies_s[broken - 1], 1e-9), latencies_s[broken]
    if math.isinf(after):
        return rates[broken - 1]
    part = math.log(limit_s / before) / math.log(after / before)
    return rates[broken - 1] + part * (rates[broken] - rates[broken - 1])
