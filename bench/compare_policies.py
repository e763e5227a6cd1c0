"""Every preset at half, once and twice its own rate: what each policy delivers, and how soon the first token comes.

    python bench/compare_policies.py [--preset tenants] [--policy prefix-aware] [--requests 1500] [--seed 1]

A short form of `router sim`, on the fleet each preset names. Prints hit rate, mean and p99 TTFT, and the imbalance of
computed tokens.
"""

import argparse

from rich.console import Console
from rich.table import Table

from sim.compare import compare
from sim.cost import PROFILES
from sim.presets import PRESETS, preset
from sim.report_table import number, percent, seconds
from sim.run import Setup

POLICIES = ("round-robin", "user-hash", "prefix-aware")
PUBLISHED = ("tenants-stages",)
"""Presets whose rates are part of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", action="append", choices=PRESETS)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--requests", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    table = Table("preset", "rate /s", "policy", "hit rate", "TTFT mean", "p99", "imbalance")
    for name in given.preset or (name for name in PRESETS if name not in PUBLISHED):
        known = PRESETS[name]
        fleet = known.defaults
        setup = Setup(fleet.replicas, fleet.blocks, PROFILES[fleet.profile], seed=given.seed)
        for factor in (0.5, 1, 2):
            rate = known.options.rate * factor
            workload = preset(name, requests=given.requests, rate=rate, seed=given.seed)
            found = compare(lambda _, it=workload: it, given.policy or POLICIES, setup, with_bounds=False)
            for row in found.rows:
                told = row.mean
                cells = (percent(told.hit_rate), seconds(told.ttft_s.mean), seconds(told.ttft_s.p99))
                table.add_row(name, f"{rate:g}", row.policy, *cells, number(told.imbalance))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
