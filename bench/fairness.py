"""What a flood does to the others: time to first token of three tenants before one replica, by arrival and by turns.

    python bench/fairness.py [--quantum 4096] [--seconds 120] [--seed 1]

One tenant sends four times what the replica can take, two send little. The replica is the simulator's (virtual time),
at most 32 requests are on it, the rest queue: by arrival, or by deficit round robin over uncached tokens, as
`admission.fair_quantum_tokens` has it. Prints p50 and p95 of each tenant's time to first token, requests it got
through, and the prompt tokens computed for it; and what a turn costs in CPU.
"""

import argparse
import time
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import quantiles

from rich.console import Console
from rich.table import Table

from policies.fairness import DeficitRounds
from sim.cost import DEFAULT_PROFILE, PROFILES
from sim.jobs import Job
from sim.timed import TimedReplica

AT_ONCE = 32
OUTPUT_TOKENS = 60
RATES = {"flood": 60.0, "calm": 1.0, "chat": 2.0}
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Asked:
    at_s: float
    tenant: str
    prompt_tokens: int
    keys: tuple[bytes, ...]
    cached_tokens: int


def traffic(seconds: float, seed: int) -> list[Asked]:
    """Fresh prompts for two tenants; the third's begin with its own system prompt."""
    asked, fresh = [], count()
    for tenant, per_s in RATES.items():
        draw, at_s, before = Random(f"{seed} {tenant}"), 0.0, False
        while (at_s := at_s + draw.expovariate(per_s)) < seconds:
            blocks = draw.randrange(60, 200)
            head = 100 if tenant == "chat" else 0
            shared = tuple(b"chat" + number.to_bytes(12, "big") for number in range(head))
            own = tuple(next(fresh).to_bytes(16, "big") for _ in range(blocks))
            cached = head * BLOCK_TOKENS if before else 0
            before = True
            asked.append(Asked(at_s, tenant, (head + blocks) * BLOCK_TOKENS + 1, shared + own, cached))
    return sorted(asked, key=lambda one: one.at_s)


def served(asked: list[Asked], seconds: float, quantum_tokens: int | None) -> dict[str, list[tuple[float, int]]]:
    """Of each tenant, the times to first token and computed tokens of what was answered within `seconds`."""
    replica = TimedReplica("r1", PROFILES[DEFAULT_PROFILE], blocks=20_000, block_tokens=BLOCK_TOKENS)
    rounds = DeficitRounds(quantum_tokens) if quantum_tokens is not None else None
    queue: list[tuple[int, int]] = []
    found: dict[str, list[tuple[float, int]]] = {tenant: [] for tenant in RATES}
    computed: dict[int, int] = {}
    place, on_it = 0, 0
    while True:
        next_s = min(asked[place].at_s if place < len(asked) else seconds, replica.next_s or seconds)
        if next_s >= seconds:
            return found
        if replica.next_s is not None and replica.next_s <= next_s:
            moment = replica.advance(next_s)
            for number, cached in moment.admitted.items():
                computed[int(number)] = asked[int(number)].prompt_tokens - cached
            for number in moment.first:
                one = asked[int(number)]
                found[one.tenant].append((next_s - one.at_s, computed.get(int(number), 0)))
            on_it -= len(moment.finished)
        else:
            one = asked[place]
            turn = 0 if rounds is None else rounds.of(one.tenant, one.prompt_tokens - one.cached_tokens)
            heappush(queue, (turn, place))
            place += 1
        while queue and on_it < AT_ONCE:
            turn, number = heappop(queue)
            if rounds is not None:
                rounds.served(turn)
            replica.submit(Job(number, asked[number].prompt_tokens, OUTPUT_TOKENS, asked[number].keys), next_s)
            on_it += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantum", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    asked = traffic(given.seconds, given.seed)
    table = Table("queue", "tenant", "asked", "answered", "TTFT p50", "TTFT p95", "tokens computed", box=None)
    for name, quantum in (("by arrival", None), (f"by turns of {given.quantum} tokens", given.quantum)):
        for tenant, answers in served(asked, given.seconds, quantum).items():
            marks = quantiles([ttft_s for ttft_s, _ in answers] or [0.0, 0.0], n=20)
            wanted = sum(one.tenant == tenant for one in asked)
            tokens = sum(computed for _, computed in answers)
            row = (
                name,
                tenant,
                str(wanted),
                str(len(answers)),
                f"{marks[9]:.2f} s",
                f"{marks[18]:.2f} s",
                f"{tokens:,}",
            )
            table.add_row(*row)
    Console(width=120).print(table)
    rounds, turns = DeficitRounds(given.quantum), 200_000
    began_s = time.process_time()
    for number in range(turns):
        rounds.served(rounds.of(f"tenant-{number % 1000}", 2000) - 1)
    print(f"a turn among 1000 tenants: {(time.process_time() - began_s) / turns * 1e6:.2f} µs")


if __name__ == "__main__":
    main()
