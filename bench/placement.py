"""What placing one request costs: JSON to prompt, keys, view, choice and the three facts of a finished request.

    python bench/placement.py [--tokenizer FOLDER] [--replicas 8] [--rounds 60] [--json]

Prompts are invented text, new in every round (tokenizers cache words), in chats of the given size; `warm` sends a
conversation again with 1 KB more. Each engine that can be had is timed. Not here: sockets, HTTP, and the replica.
"""

import argparse
import asyncio
import gc
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from policies.blocks import Chain
from policies.fleet import Fleet
from policies.prefix_aware import PrefixAware
from policies.types import Request
from router.prompts import LocalReader
from router.readers import TINY, local_reader

ROUTE = "/v1/chat/completions"
BLOCK_TOKENS = 16
KB = 1024

_SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "qui", "ment", "ing", "tion", "er"]
_COMMON = ["the", "of", "and", "to", "in", "is", "that", "it", "for", "as", "with", "was", "on", "be", "by", "this"]


@dataclass(frozen=True, slots=True)
class Timing:
    """One case on one engine."""

    case: str
    engine: str
    prompt_tokens: int
    p50_ms: float
    p99_ms: float
    read_p50_ms: float
    """The share of rendering, tokenizing and hashing; the rest is JSON, view, choice and bookkeeping."""
    rounds: int


def text(draw: random.Random, size: int) -> str:
    """About `size` characters of invented prose: half of it common words, half new ones."""
    words: list[str] = []
    length = 0
    while length < size:
        word = draw.choice(_COMMON) if draw.random() < 0.5 else "".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4)))
        word += draw.choice(["", "", "", "", "", "", "", ",", ".", ".\n"])
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:size]


def messages(draw: random.Random, size: int, message_size: int) -> list[dict[str, str]]:
    """A conversation of `size` characters that ends with a user's message."""
    count = max(1, size // message_size) | 1
    roles = itertools.islice(itertools.cycle(["user", "assistant"]), count)
    turns = [{"role": role, "content": text(draw, size // count)} for role in roles]
    return [{"role": "system", "content": "You are a careful assistant."}, *turns]


def body(chat: list[dict[str, str]]) -> bytes:
    return orjson.dumps({"model": "m", "messages": chat, "stream": True, "max_tokens": 256})


def cases(rounds: int, seed: int) -> Iterator[tuple[str, list[tuple[bytes | None, bytes]]]]:
    """Each case's pairs of bodies: one to send before the clock starts (or None), and the one that is timed."""
    draw = random.Random(seed)
    yield "1 KB cold", [(None, body(messages(draw, KB, KB))) for _ in range(rounds)]
    yield "128 KB cold", [(None, body(messages(draw, 128 * KB, 3 * KB))) for _ in range(rounds)]
    pairs: list[tuple[bytes | None, bytes]] = []
    for _ in range(rounds):
        history = messages(draw, 128 * KB, 3 * KB)
        more = [{"role": "assistant", "content": text(draw, KB // 2)}, {"role": "user", "content": text(draw, KB // 2)}]
        pairs.append((body(history), body([*history, *more])))
    yield "128 KB warm + 1 KB new", pairs


class Placements:
    """A fleet, the default policy and a reader, as the gateway holds them."""

    def __init__(self, reader: LocalReader, replicas: int) -> None:
        self.reader = reader
        self.fleet = Fleet(BLOCK_TOKENS)
        for number in range(replicas):
            self.fleet.joined(f"replica-{number}", capacity_blocks=50_000)
            self.fleet.serves(f"replica-{number}", ["m"])
        self.policy = PrefixAware(seed=1)
        self.numbers = itertools.count()

    async def one(self, raw: bytes) -> tuple[float, float, int]:
        """Seconds for all of it, seconds for reading the prompt, and the prompt's tokens."""
        began_s = time.perf_counter()
        asked = orjson.loads(raw)
        parsed_s = time.perf_counter()
        prompt = await self.reader.read(ROUTE, asked, Chain.root(asked["model"]))
        read_s = time.perf_counter() - parsed_s
        request = Request(
            id=str(next(self.numbers)),
            route=ROUTE,
            model=asked["model"],
            tenant="",
            user=None,
            session=None,
            prompt_tokens=prompt.tokens,
            max_output_tokens=asked["max_tokens"],
            blocks=prompt.blocks,
            block_tokens=BLOCK_TOKENS,
        )
        view = self.fleet.view(request, began_s)
        self.fleet.sent(request, self.policy.choose(request, view).replica)
        self.fleet.first_token(request)
        self.fleet.done(request)
        return time.perf_counter() - began_s, read_s, prompt.tokens


async def timed(placements: Placements, case: str, pairs: list[tuple[bytes | None, bytes]]) -> Timing:
    whole, reads, tokens = [], [], 0
    gc.collect()
    gc.freeze()
    for before, raw in pairs:
        if before is not None:
            await placements.one(before)
        whole_s, read_s, tokens = await placements.one(raw)
        whole.append(whole_s * 1e3)
        reads.append(read_s * 1e3)
    gc.unfreeze()
    return Timing(
        case=case,
        engine=placements.reader.tokenizer.engine,
        prompt_tokens=tokens,
        p50_ms=statistics.median(whole),
        p99_ms=statistics.quantiles(whole, n=100, method="inclusive")[98],
        read_p50_ms=statistics.median(reads),
        rounds=len(pairs),
    )


def readers(folder: Path, threads: ThreadPoolExecutor) -> Iterator[LocalReader]:
    """The reader as the router would load it, and, when that is on the fast engine, one on the reference engine."""
    first = local_reader(folder, block_tokens=BLOCK_TOKENS, executor=threads)
    yield first
    if first.tokenizer.engine == "tokenizers":
        return
    hidden = sys.modules["fastokens"]
    sys.modules["fastokens"] = None  # type: ignore[assignment] # an import of it now fails
    try:
        yield local_reader(folder, block_tokens=BLOCK_TOKENS, executor=threads)
    finally:
        sys.modules["fastokens"] = hidden


def measured(folder: Path, replicas: int, rounds: int, seed: int) -> list[Timing]:
    timings = []
    with ThreadPoolExecutor(2, thread_name_prefix="tokenize") as threads:
        for reader in readers(folder, threads):
            placements = Placements(reader, replicas)
            for case, pairs in cases(rounds, seed):
                timings.append(asyncio.run(timed(placements, case, pairs)))
    return timings


def shown(timings: list[Timing], title: str) -> Table:
    table = Table(title=title)
    for name in ("case", "engine"):
        table.add_column(name)
    for name in ("tokens", "p50 ms", "p99 ms", "of it reading, p50 ms"):
        table.add_column(name, justify="right")
    for timing in timings:
        numbers = (f"{value:.2f}" for value in (timing.p50_ms, timing.p99_ms, timing.read_p50_ms))
        table.add_row(timing.case, timing.engine, f"{timing.prompt_tokens:,}", *numbers)
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What placing one request costs.")
    parser.add_argument("--tokenizer", type=Path, default=TINY, help="a model folder (default: the one that ships)")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60, help="requests timed per case, at least 2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    asked = parser.parse_args(argv)
    timings = measured(asked.tokenizer, asked.replicas, asked.rounds, asked.seed)
    if asked.json:
        result: dict[str, Any] = {"replicas": asked.replicas, "timings": [asdict(timing) for timing in timings]}
        json.dump(result, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        Console().print(shown(timings, f"One request placed, {asked.replicas} replicas, {asked.rounds} rounds"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
