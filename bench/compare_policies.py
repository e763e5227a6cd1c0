"""The lesson's traffic and a tenants' load in virtual time: the fleet's book and a policy over the engine model.

    python bench/compare_policies.py [--rate 20] [--blocks 5000] [--policy prefix-aware]

Prints hit rate, mean and p99 TTFT, and the busiest replica's share of requests. The router's belief is its own index,
fed by what is sent; the truth is the engine model's cache.
"""

import argparse
import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from policies.blocks import Chain, block_keys, hittable_blocks, packed
from policies.fleet import Fleet, Report
from policies.plugins import load
from policies.types import Policy, Request
from sim.cost import DEFAULT_PROFILE, PROFILES
from sim.jobs import Job
from sim.replica import SimReplica
from sim.workload import lesson_turns

BLOCK = 16


@dataclass(frozen=True)
class Arrival:
    time_s: float
    user: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def lesson(rate: float, seed: int) -> Iterator[Arrival]:
    for turn in lesson_turns(seed, rate):
        yield Arrival(turn.time_s, str(turn.user), turn.prompt_ids, turn.answer_ids)


def tenants(rate: float, seed: int) -> Iterator[Arrival]:
    """150 tenants with a 6,000-token prompt each, 5 users a tenant, a fresh question of 1,200 tokens every time."""
    draw = random.Random(seed)
    heads = [tuple(draw.randrange(50_000) for _ in range(6_000)) for _ in range(150)]
    now_s = 0.0
    for _ in range(2_400):
        now_s += draw.expovariate(rate)
        tenant = draw.randrange(150)
        question = tuple(draw.randrange(50_000) for _ in range(1_200))
        yield Arrival(now_s, f"{tenant}-{draw.randrange(5)}", heads[tenant] + question, tuple(range(450)))


def new_users(rate: float, seed: int) -> Iterator[Arrival]:
    """Everybody is new: one 3,000-token system prompt and 200 tokens of one's own."""
    draw = random.Random(seed)
    head = tuple(draw.randrange(50_000) for _ in range(3_000))
    now_s = 0.0
    for number in range(1_500):
        now_s += draw.expovariate(rate)
        yield Arrival(now_s, str(number), head + tuple(draw.randrange(50_000) for _ in range(200)), tuple(range(100)))


def run(arrivals: Iterator[Arrival], policy: Policy, replicas: int, blocks: int) -> tuple[float, float, float, float]:
    """Hit rate, mean and p99 TTFT in seconds, busiest share of requests."""
    fleet = Fleet(BLOCK)
    engines = {}
    for number in range(replicas):
        name = f"r{number}"
        fleet.joined(name, capacity_blocks=blocks - 1)
        engines[name] = SimReplica(name, PROFILES[DEFAULT_PROFILE], blocks=blocks, block_tokens=BLOCK)
    order = itertools.count()
    heap: list[tuple[float, int, str, Arrival | None]] = [(a.time_s, next(order), "", a) for a in arrivals]
    heapq.heapify(heap)
    sent: dict[str, tuple[float, Request, tuple[bytes, ...]]] = {}
    ttfts, counts, busy = [], dict.fromkeys(engines, 0), set()
    prompt_tokens = cached_tokens = 0
    root = Chain.root("m")
    while heap:
        now_s, place, name, arrival = heapq.heappop(heap)
        if arrival is not None:
            keys = block_keys(root, packed(arrival.prompt + arrival.answer), BLOCK)
            count = len(arrival.prompt)
            hittable = keys[: hittable_blocks(count, BLOCK)]
            request = Request(str(place), "", "", "", arrival.user, None, count, None, hittable, BLOCK)
            name = policy.choose(request, fleet.view(request, now_s)).replica
            fleet.sent(request, name)
            counts[name] += 1
            sent[request.id] = (now_s, request, keys[len(hittable) :])
            engines[name].submit(Job(request.id, count, len(arrival.answer), keys))
            prompt_tokens += count
            if name in busy:
                continue
        else:
            tokens = engines[name].finish_step()
            for job in tokens.first:
                fleet.first_token(sent[job][1])
                ttfts.append(now_s - sent[job][0])
            for job in tokens.finished:
                _, request, rest = sent.pop(job)
                fleet.done(request, rest)
            busy.discard(name)
        step = engines[name].step()
        if step is not None:
            busy.add(name)
            cached_tokens += sum(step.admitted.values())
            heapq.heappush(heap, (now_s + step.duration_s, next(order), name, None))
        fleet.reported(name, Report(kv_used_fraction=engines[name].kv_used_fraction), now_s)
    hit = cached_tokens / prompt_tokens
    return hit, float(np.mean(ttfts)), float(np.percentile(ttfts, 99)), max(counts.values()) / sum(counts.values())


LOADS = {
    "lesson": (lesson, 4, 5_000, (5, 20, 60)),
    "new users": (new_users, 4, 5_000, (2, 10, 40)),
    "tenants": (tenants, 8, 19_208, (20, 45)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", action="append", choices=LOADS)
    given = parser.parse_args()
    table = Table("load", "rate /s", "policy", "hit rate", "TTFT mean", "p99", "busiest share")
    for load_name in given.load or LOADS:
        make, replicas, blocks, rates = LOADS[load_name]
        for rate in rates:
            for name in given.policy or ("round-robin", "user-hash", "prefix-aware"):
                arrivals = make(float(rate), given.seed)
                hit, mean_s, p99_s, share = run(arrivals, load(name, seed=given.seed), replicas, blocks)
                row = (f"{hit:.3f}", f"{1000 * mean_s:.0f} ms", f"{1000 * p99_s:.0f} ms", f"{share:.2f}")
                table.add_row(load_name, str(rate), name, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
