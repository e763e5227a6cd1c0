"""What following an engine's KV events costs: blocks per second of processor time, memory, and the longest hold-up.

    python bench/kv_ingest.py            a million blocks stored, and removed once the cache is full
    python bench/kv_ingest.py --blocks N another number
    python bench/kv_ingest.py --check    exit 1 below 200,000 blocks a second, or when the loop is held up over 10 ms

Batches are msgpack as vLLM 0.32 sends them, made beforehand: prompts of 2,000 blocks and of a few, turns that continue
one, blocks filled while decoding, and for each block stored in a full cache one removed. Stored and removed blocks both
count. The hold-up is the longest time in which a task that only yields did not get its turn.
"""

import argparse
import asyncio
import gc
import random
import sys
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq.asyncio
from rich.console import Console
from rich.table import Table

from policies.blocks import Chain
from policies.fleet import Fleet
from router.kv_feed import Feed
from router.kv_publisher import Publisher
from router.kv_sources import Source

BLOCK_TOKENS = 16
VOCABULARY = 151_936
CACHE_BLOCKS = 50_000
"""Of one engine; from about 90,000 on the growing of a single dict takes over 10 ms, once or twice in its life."""
TARGET_PER_S = 200_000
TARGET_HOLD_UP_S = 0.010
TRAFFIC = {"long prompts": ((2000,), 0.5), "chats": ((1, 1, 1, 8, 32, 125), 0.5), "decoding": ((1,), 0.98)}
"""Blocks of a stored event, and how often it continues a recent one."""


class Engine:
    """Says what an engine with a full cache says."""

    def __init__(self, sizes: tuple[int, ...], continued: float) -> None:
        self._continued = continued
        self._draw = random.Random(1)
        self._sizes = sizes
        self._held: OrderedDict[int, None] = OrderedDict()
        self._recent: list[int] = []

    def batch(self) -> tuple[bytes, int]:
        """One step's events, packed, and how many blocks they name."""
        events: list[dict[str, Any]] = []
        count = 0
        for _ in range(max(1, 64 // max(self._sizes))):
            events += self._stored(self._draw.choice(self._sizes))
        for event in events:
            count += len(event["block_hashes"])
        return msgspec.msgpack.encode([time.time(), events, 0]), count

    def _stored(self, blocks: int) -> Iterator[dict[str, Any]]:
        draw = self._draw
        hashes = [draw.getrandbits(64) for _ in range(blocks)]
        while len(self._held) + blocks > CACHE_BLOCKS:
            gone, _ = self._held.popitem(last=False)
            yield {"type": "BlockRemoved", "block_hashes": [gone], "medium": "GPU", "group_idx": 0}
        living = [one for one in self._recent if one in self._held]
        parent = draw.choice(living) if living and draw.random() < self._continued else None
        self._held.update(dict.fromkeys(hashes))
        living = [one for one in living if one != parent]
        self._recent = [*living[-63:], hashes[-1], *([hashes[blocks // 2]] if blocks > 1 else [])]
        yield {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": [draw.randrange(VOCABULARY) for _ in range(blocks * BLOCK_TOKENS)],
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * blocks,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }


async def taken(batches: list[bytes], context: zmq.asyncio.Context) -> tuple[float, float, Publisher]:
    """Processor seconds to take the batches as a subscription does, the longest hold-up, and what is held then."""
    fleet = Fleet(BLOCK_TOKENS)
    fleet.joined("r1")
    root = Chain.root("m")
    publisher = Publisher(fleet, "r1", root=lambda _adapter, _salt: root, alone=True, seeds=("0",))
    feed = Feed(context, Source(0, "tcp://127.0.0.1:1", None), publisher, told_as="r1")
    longest_s = 0.0
    done = False

    async def others() -> None:
        nonlocal longest_s
        last_s = time.thread_time()  # of this thread alone: what else the machine does is no fault of ours
        while not done:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s = max(longest_s, now_s - last_s)
            last_s = now_s

    watching = asyncio.create_task(others())
    began_s = time.process_time()
    for number, payload in enumerate(batches):
        await feed.arrived([b"kv", number.to_bytes(8, "big"), payload])
    spent_s = time.process_time() - began_s
    done = True
    await watching
    return spent_s, longest_s, publisher


def bytes_per_block(batches: list[bytes], context: zmq.asyncio.Context) -> float:
    gc.collect()
    tracemalloc.start()
    _, _, publisher = asyncio.run(taken(batches, context))
    gc.collect()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return allocated / len(publisher.blocks)


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--blocks", type=int, default=1_000_000)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    table = Table(title=f"KV events: {options.blocks:,} blocks stored or removed, a cache of {CACHE_BLOCKS:,}")
    for column in ("what is stored", "batches", "blocks a CPU second", "longest hold-up, ms", "bytes a block held"):
        table.add_column(column, justify="right")
    missed = False
    context = zmq.asyncio.Context()
    for name, (sizes, continued) in TRAFFIC.items():
        engine, batches, blocks = Engine(sizes, continued), list[bytes](), 0
        while blocks < options.blocks // len(TRAFFIC):
            payload, count = engine.batch()
            batches.append(payload)
            blocks += count
        spent_s, longest_s, _ = asyncio.run(taken(batches, context))
        per_s = blocks / spent_s
        missed |= per_s < TARGET_PER_S or longest_s > TARGET_HOLD_UP_S
        size = bytes_per_block(batches[: len(batches) // 4], context)
        table.add_row(name, f"{len(batches):,}", f"{per_s:,.0f}", f"{1000 * longest_s:.1f}", f"{size:.0f}")
    context.term()
    Console().print(table)
    return int(missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
