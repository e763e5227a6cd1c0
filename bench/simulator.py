"""Count how many requests the simulator gets through in a second of CPU: the engine alone, and with a policy.

    python bench/simulator.py [--requests 20000] [--replicas 16 64] [--json]

Sessions of 5 turns: a first prompt of about 2,200 tokens of which half is one of 20 shared heads, then 60 to 240 new
tokens a turn, answers of 200 to 600, some seconds of thinking; 16-token blocks, the default profile. `engine` sends
requests round robin from a loop that does nothing else; `sim` is what `router sim` runs, with prefix-aware. Making the
traffic is measured apart and taken off. CPU seconds are the process's.
"""

import argparse
import gc
import heapq
import itertools
import json
import random
import resource
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from policies.prefix_aware import PrefixAware
from sim.arrivals import Arrival, Workload
from sim.cost import DEFAULT_PROFILE, PROFILES
from sim.jobs import Job
from sim.run import Setup, simulate
from sim.timed import TimedReplica

BLOCK_TOKENS = 16
TURNS = 5
HEADS = 20
HEAD_TOKENS = 1104
REPLICA_BLOCKS = 20_000
TARGETS = {16: 6_000, 64: 4_000}


def run_keys(run: int, count: int) -> tuple[bytes, ...]:
    """Keys of `count` blocks that come one after the other and are shared as a whole or not at all."""
    return tuple(struct.pack(">QII", run, 0, place) for place in range(count))


def arrivals(requests: int, rate_per_s: float, seed: int = 1) -> Iterator[Arrival]:
    """Open loop; sessions begin as a Poisson process. Only the sessions that are open are in memory."""
    draw = random.Random(seed)
    runs = itertools.count(HEADS)
    heads = [run_keys(head, HEAD_TOKENS // BLOCK_TOKENS) for head in range(HEADS)]
    coming: list[tuple[float, int, int, int, int, tuple[bytes, ...]]] = []
    start_s = draw.expovariate(rate_per_s / TURNS)
    session = number = 0
    while number < requests:
        while session < requests // TURNS and (not coming or start_s <= coming[0][0]):
            prompt, output = HEAD_TOKENS + draw.randint(900, 1300), draw.randint(200, 600)
            heapq.heappush(coming, (start_s, session, 0, prompt, output, heads[draw.randrange(HEADS)]))
            start_s += draw.expovariate(rate_per_s / TURNS)
            session += 1
        time_s, whose, turn, prompt, output, keys = heapq.heappop(coming)
        keys = keys + run_keys(next(runs), (prompt + output) // BLOCK_TOKENS - len(keys))
        yield Arrival(number, time_s, prompt, output, keys, session=str(whose))
        number += 1
        if turn + 1 < TURNS:
            later = (time_s + 5.0 + draw.expovariate(0.1), whose, turn + 1)
            heapq.heappush(coming, (*later, prompt + output + draw.randint(60, 240), draw.randint(200, 600), keys))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Arrivals that can be gone through many times."""

    requests: int
    rate_per_s: float

    def __iter__(self) -> Iterator[Arrival]:
        return arrivals(self.requests, self.rate_per_s)


def engine(traffic: Traffic, replicas: int) -> None:
    """The smallest event loop, round robin: one entry of the heap is the next call of a replica."""
    engines = [
        TimedReplica(f"r{place}", PROFILES[DEFAULT_PROFILE], blocks=REPLICA_BLOCKS, block_tokens=BLOCK_TOKENS)
        for place in range(replicas)
    ]
    order, places = itertools.count(), itertools.cycle(range(replicas))
    heap: list[tuple[float, int, int]] = []
    due: list[float | None] = [None] * replicas
    coming = iter(traffic)
    arrival = next(coming, None)
    while heap or arrival is not None:
        if arrival is not None and (not heap or arrival.time_s <= heap[0][0]):
            place = next(places)
            job = Job(arrival.number, arrival.prompt_tokens, arrival.output_tokens, arrival.keys)
            engines[place].submit(job, arrival.time_s)
            arrival = next(coming, None)
        else:
            now_s, _, place = heapq.heappop(heap)
            if due[place] != now_s:
                continue
            engines[place].advance(now_s)
        next_s = engines[place].next_s
        if next_s != due[place]:
            due[place] = next_s
            if next_s is not None:
                heapq.heappush(heap, (next_s, next(order), place))


def whole(traffic: Traffic, replicas: int) -> None:
    """What `router sim` does: the engines, the router's book, prefix-aware, and the columns of the outcome."""
    workload = Workload("sessions of 5 turns", BLOCK_TOKENS, traffic, traffic.requests)
    outcome = simulate(workload, PrefixAware(seed=1), Setup(replicas, REPLICA_BLOCKS))
    assert len(outcome.number) == traffic.requests


WAYS = {"engine": engine, "sim": whole}


def measured(way: str, replicas: int, requests: int, rate_per_s: float) -> dict[str, float | int | str]:
    traffic = Traffic(requests, rate_per_s * replicas)
    start_s = time.process_time()
    for _ in traffic:
        pass
    made_s = time.process_time() - start_s
    gc.collect()
    gc.freeze()
    gc.disable()
    start_s = time.process_time()
    WAYS[way](traffic, replicas)
    cpu_s = time.process_time() - start_s - made_s
    gc.enable()
    gc.unfreeze()
    return {
        "way": way,
        "replicas": replicas,
        "requests": requests,
        "requests_per_cpu_s": round(requests / cpu_s),
        "cpu_us_per_request": round(cpu_s / requests * 1e6, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument(
        "--rate", type=float, default=2.0, help="requests per second and replica (default: %(default)s)"
    )
    parser.add_argument("--replicas", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--way", choices=list(WAYS), action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        measured(way, replicas, options.requests, options.rate)
        for replicas in options.replicas
        for way in options.way or WAYS
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("way", "replicas", "requests", "requests / CPU-s", "target", "µs / request", "CPU s", "peak MiB")
    for row in rows:
        target = str(TARGETS.get(int(row["replicas"]), "")) if row["way"] == "sim" else ""
        cells = ("replicas", "requests", "requests_per_cpu_s", "", "cpu_us_per_request", "cpu_s", "peak_rss_mib")
        table.add_row(str(row["way"]), *(str(row[cell]) if cell else target for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
