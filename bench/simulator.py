"""Count how many requests the simulator gets through in a second of CPU: the engine alone, and with a policy.

    python bench/simulator.py [--requests 20000] [--rate 2.0] [--json]

Sessions of 5 turns: a first prompt of about 2,200 tokens of which half is one of 20 shared heads, then 60 to 240 new
tokens a turn, answers of 200 to 600, some seconds of thinking; 16-token blocks, the default profile. `engine` sends
requests round robin from a loop that does nothing else; `fleet` asks prefix-aware, through the very book that the
router keeps. CPU seconds are those of the process; the cyclic garbage collector rests meanwhile, as in a simulation.
"""

import argparse
import gc
import heapq
import itertools
import json
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from policies.blocks import hittable_blocks
from policies.fleet import Fleet
from policies.prefix_aware import PrefixAware
from policies.types import Request
from sim.arrivals import Arrival
from sim.cost import DEFAULT_PROFILE, PROFILES
from sim.jobs import Job
from sim.timed import TimedReplica

BLOCK_TOKENS = 16
TURNS = 5
HEADS = 20
HEAD_TOKENS = 1104
REPLICA_BLOCKS = 20_000
TARGETS = {16: 6_000, 64: 4_000}

Choose = Callable[[Arrival], int]
Told = Callable[[Arrival], None]


def run_keys(run: int, count: int) -> tuple[bytes, ...]:
    """Keys of `count` blocks that come one after the other and are shared as a whole or not at all."""
    return tuple(struct.pack(">QII", run, 0, place) for place in range(count))


def arrivals(requests: int, rate_per_s: float, seed: int = 1) -> list[Arrival]:
    """Open loop; sessions begin as a Poisson process."""
    draw = random.Random(seed)
    runs = itertools.count(HEADS)
    heads = [run_keys(head, HEAD_TOKENS // BLOCK_TOKENS) for head in range(HEADS)]
    found: list[tuple[float, int, int, int, tuple[bytes, ...]]] = []
    start_s = 0.0
    for session in range(requests // TURNS):
        start_s += draw.expovariate(rate_per_s / TURNS)
        time_s = start_s
        keys = heads[draw.randrange(HEADS)]
        prompt = HEAD_TOKENS + draw.randint(900, 1300)
        for _ in range(TURNS):
            output = draw.randint(200, 600)
            keys = keys + run_keys(next(runs), (prompt + output) // BLOCK_TOKENS - len(keys))
            found.append((time_s, session, prompt, output, keys))
            time_s += 5.0 + draw.expovariate(0.1)
            prompt += output + draw.randint(60, 240)
    found.sort(key=lambda turn: turn[:2])
    return [
        Arrival(number, time_s, prompt, output, keys, session=str(session))
        for number, (time_s, session, prompt, output, keys) in enumerate(found)
    ]


def played(traffic: Sequence[Arrival], engines: list[TimedReplica], choose: Choose, first: Told, done: Told) -> None:
    """The smallest event loop: one entry of the heap is the next arrival or the next call of a replica."""
    order = itertools.count()
    heap: list[tuple[float, int, int]] = []
    due: list[float | None] = [None] * len(engines)
    coming = iter(traffic)
    arrival = next(coming, None)
    while heap or arrival is not None:
        if arrival is not None and (not heap or arrival.time_s <= heap[0][0]):
            place = choose(arrival)
            engine = engines[place]
            job = Job(arrival.number, arrival.prompt_tokens, arrival.output_tokens, arrival.keys)
            engine.submit(job, arrival.time_s)
            arrival = next(coming, None)
        else:
            now_s, _, place = heapq.heappop(heap)
            engine = engines[place]
            if due[place] != now_s:
                continue
            moment = engine.advance(now_s)
            for number in moment.first:
                first(traffic[int(number)])
            for number in moment.finished:
                done(traffic[int(number)])
        if engine.next_s != due[place]:
            due[place] = engine.next_s
            if engine.next_s is not None:
                heapq.heappush(heap, (engine.next_s, next(order), place))


def fleet_of(engines: Sequence[TimedReplica]) -> tuple[Choose, Told, Told]:
    """What the simulator does beside the engines: the router's book and its policy."""
    fleet, policy = Fleet(BLOCK_TOKENS), PrefixAware()
    place_of = {engine.name: place for place, engine in enumerate(engines)}
    for engine in engines:
        fleet.joined(engine.name, capacity_blocks=engine.cache.usable_blocks)
    asked: dict[int, Request] = {}

    def choose(arrival: Arrival) -> int:
        blocks = arrival.keys[: hittable_blocks(arrival.prompt_tokens, BLOCK_TOKENS)]
        request = Request(
            str(arrival.number), "", "", "", None, arrival.session, arrival.prompt_tokens, None, blocks, BLOCK_TOKENS
        )
        choice = policy.choose(request, fleet.view(request, arrival.time_s))
        fleet.sent(request, choice.replica)
        asked[arrival.number] = request
        return place_of[choice.replica]

    def first(arrival: Arrival) -> None:
        fleet.first_token(asked[arrival.number])

    def done(arrival: Arrival) -> None:
        request = asked.pop(arrival.number)
        fleet.done(request, arrival.keys[len(request.blocks) :])

    return choose, first, done


def in_turn(engines: Sequence[TimedReplica]) -> tuple[Choose, Told, Told]:
    places: Iterator[int] = itertools.cycle(range(len(engines)))
    return lambda _: next(places), lambda _: None, lambda _: None


WAYS = {"engine": in_turn, "fleet": fleet_of}


def measured(way: str, replicas: int, requests: int, rate_per_s: float) -> dict[str, float | int | str]:
    traffic = arrivals(requests, rate_per_s * replicas)
    profile = PROFILES[DEFAULT_PROFILE]
    engines = [
        TimedReplica(f"r{place}", profile, blocks=REPLICA_BLOCKS, block_tokens=BLOCK_TOKENS)
        for place in range(replicas)
    ]
    choose, first, done = WAYS[way](engines)
    gc.collect()
    gc.freeze()
    gc.disable()
    start_s = time.process_time()
    played(traffic, engines, choose, first, done)
    cpu_s = time.process_time() - start_s
    gc.enable()
    gc.unfreeze()
    sums = [engine.counters for engine in engines]
    return {
        "way": way,
        "replicas": replicas,
        "requests": sum(each.finished for each in sums),
        "requests_per_cpu_s": round(len(traffic) / cpu_s),
        "cpu_us_per_request": round(cpu_s / len(traffic) * 1e6, 1),
        "steps_per_request": round(sum(each.steps for each in sums) / len(traffic), 1),
        "hit_fraction": round(sum(each.hit_tokens for each in sums) / sum(each.queried_tokens for each in sums), 3),
        "preemptions": sum(each.preemptions for each in sums),
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
    table = Table("way", "replicas", "requests/CPU-s", "target", "us/request", "steps/request", "hits", "preemptions")
    for row in rows:
        target = str(TARGETS.get(int(row["replicas"]), "")) if row["way"] == "fleet" else ""
        cells = ("requests_per_cpu_s", "", "cpu_us_per_request", "steps_per_request", "hit_fraction", "preemptions")
        table.add_row(str(row["way"]), str(row["replicas"]), *(str(row[cell]) if cell else target for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
