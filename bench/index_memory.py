"""What the prefix index costs: bytes for each block a replica holds, and microseconds to look up and record.

    python bench/index_memory.py            a million (block, replica) pairs a row
    python bench/index_memory.py --pairs N  another size
    python bench/index_memory.py --check    exit 1 when long chains take more than 60 bytes a pair

Bytes are what Python allocates (tracemalloc) for the index alone: a router needs no prompt once it is recorded.
"""

import argparse
import gc
import itertools
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from policies.index import PrefixIndex

CHAINS = (2_000, 125, 6)
REPLICAS = (1, 4, 16)
TARGET_BYTES = 60.0
LONG_BLOCKS = 125
"""Chains of at least this many blocks must meet the target; a short one pays for a run of its own."""


def prompts(chain_blocks: int) -> Iterator[tuple[bytes, ...]]:
    """Prompts without a common prefix, made of keys that look like digests."""
    draw = random.Random(1)
    while True:
        keys = draw.randbytes(16 * chain_blocks)
        yield tuple(keys[start : start + 16] for start in range(0, len(keys), 16))


def filled(chain_blocks: int, replicas: int, pairs: int) -> PrefixIndex:
    index = PrefixIndex(unknown_capacity_blocks=pairs)
    names = [f"r{number}" for number in range(replicas)]
    for name in names:
        index.joined(name)
    for blocks in itertools.islice(prompts(chain_blocks), pairs // (chain_blocks * replicas)):
        for name in names:
            index.recorded(name, blocks)
    return index


def bytes_per_pair(chain_blocks: int, replicas: int, pairs: int) -> float:
    gc.collect()
    tracemalloc.start()
    index = filled(chain_blocks, replicas, pairs)
    gc.collect()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return allocated / sum(index.held_blocks(f"r{number}") for number in range(replicas))


def microseconds(call: Callable[[tuple[bytes, ...]], object], asked: list[tuple[bytes, ...]]) -> float:
    """The median over different prompts: one prompt again and again would flatter the processor's cache."""
    taken = []
    for blocks in asked:
        began = time.perf_counter()
        call(blocks)
        taken.append(time.perf_counter() - began)
    return 1e6 * statistics.median(taken)


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--pairs", type=int, default=1_000_000)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    table = Table(title=f"prefix index with {options.pairs:,} (block, replica) pairs")
    for column in ("blocks a prompt", "replicas", "bytes a pair", "match, µs", "record known, µs", "record new, µs"):
        table.add_column(column, justify="right")
    missed = False
    for chain_blocks, replicas in itertools.product(CHAINS, REPLICAS):
        size = bytes_per_pair(chain_blocks, replicas, options.pairs)
        index = filled(chain_blocks, replicas, options.pairs)
        count = min(200, max(1, options.pairs // (chain_blocks * replicas)))
        known = list(itertools.islice(prompts(chain_blocks), count))
        new = [tuple(key[::-1] for key in blocks) for blocks in known]
        over = chain_blocks >= LONG_BLOCKS and size > TARGET_BYTES
        missed |= over
        table.add_row(
            f"{chain_blocks:,}",
            f"{replicas}",
            f"[red]{size:.1f}[/red]" if over else f"{size:.1f}",
            f"{microseconds(index.matched, known):.1f}",
            f"{microseconds(lambda blocks, index=index: index.recorded('r0', blocks), known):.1f}",  # type: ignore[misc]
            f"{microseconds(lambda blocks, index=index: index.recorded('r0', blocks), new):.1f}",  # type: ignore[misc]
        )
    Console().print(table)
    return int(missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
