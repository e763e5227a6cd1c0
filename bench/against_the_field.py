"""The default policy beside the field's, on logs of real traffic: mean and p99 TTFT, hit rate, imbalance.

    python bench/against_the_field.py LOG [LOG …] [--replicas 4,8,16] [--factor 1,3,5] [--requests 3000]

Each log is replayed at `factor` times its own rate for 8 replicas, scaled with their number, on the default profile
with caches of `--tokens` tokens each. The last column is each rule's mean over the best one's in its cell.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sim.compare import compare
from sim.cost import DEFAULT_PROFILE, PROFILES
from sim.report_table import number, percent, seconds
from sim.run import Setup
from sim.traces import describe, open_trace

FIELD = (
    "prefix-aware",
    "lmetric",
    "preble-e2",
    "cache-aware",
    "sticky-until-saturated",
    "linear-cost",
    "dualmap",
    "weighted-scorers",
    "least-loaded",
    "round-robin",
)


def listed(text: str) -> list[float]:
    return [float(value) for value in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="+", type=Path)
    parser.add_argument("--replicas", type=listed, default=[4, 8, 16])
    parser.add_argument("--factor", type=listed, default=[1, 3, 5])
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--tokens", type=int, default=1_024_000)
    parser.add_argument("--rate", type=float, help="requests per second of factor 1 on 8 replicas (the log's own)")
    given = parser.parse_args()
    table = Table("log", "replicas", "factor", "policy", "hit rate", "TTFT mean", "p99", "imbalance", "mean / best")
    for log in given.log:
        told = describe(log)
        own_rate = given.rate or told.requests_per_s or 1.0
        for replicas in map(int, given.replicas):
            for factor in given.factor:
                rate = own_rate * factor * replicas / 8
                workload = open_trace(log, requests=given.requests, rate=rate, spread_ticks=True)
                setup = Setup(replicas, given.tokens // workload.block_tokens + 1, PROFILES[DEFAULT_PROFILE], seed=1)
                rows = compare(lambda _, it=workload: it, FIELD, setup, with_bounds=False).rows
                best_s = min(row.mean.ttft_s.mean or 0.0 for row in rows)
                for row in rows:
                    mean = row.mean
                    times = (seconds(mean.ttft_s.mean), seconds(mean.ttft_s.p99))
                    ratio = f"{(mean.ttft_s.mean or 0.0) / best_s:.2f}" if best_s else "–"
                    cells = (percent(mean.hit_rate), *times, number(mean.imbalance), ratio)
                    table.add_row(log.name[:24], str(replicas), f"{factor:g}", row.policy, *cells)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
