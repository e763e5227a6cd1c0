"""Time the decision's front half: JSON, rendered text, tokens, block keys, for prompts that are new and that go on.

    python bench/decision.py --tokenizer FOLDER [--samples 40] [--json]

Three cases: 1 KB never seen, 128 KB never seen, and a 128 KB conversation the router knows plus 1 KB of new text. Each
sample is other text, so nothing is warm by accident. Prints p50 and p90, what tokenizing and hashing the
whole of it again costs, and the ratio of the two. Placing the request is `bench/placement.py`'s.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import orjson
from rich.console import Console
from rich.table import Table
from train_tiny_tokenizer import ENDINGS, WORDS

from policies.blocks import Chain, block_keys, packed
from router.prompts import LocalReader, Prompt
from router.readers import TINY, local_reader

CHAT = "/v1/chat/completions"
BLOCK_TOKENS = 16
TARGETS_MS = {"1 KB cold": 0.5, "128 KB cold": 6.0, "128 KB warm + 1 KB new": 2.5}


class Writer:
    """Text that resembles prose: English words and their forms, some rare ones, some numbers, some code."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        rare = ["".join(self._draw.choices("abdefgiklmnoprstuvz", k=9)) for _ in range(2_000)]
        self._words = [word + ending for word in WORDS for ending in ENDINGS[2:]] + rare

    def text(self, size_bytes: int) -> str:
        words = self._draw.choices(self._words, k=size_bytes // 4)
        for place in range(0, len(words), 23):
            words[place] = self._draw.choice(
                [f"{self._draw.random():.3f},", "x[i] = f(x);\n", "Then.\n\n", "(see below)"]
            )
        return " ".join(words)[:size_bytes]

    def conversation(self, size_bytes: int, turns: int) -> list[dict[str, str]]:
        """`turns` messages: a system prompt, then user and assistant, ending with the user."""
        roles = ["system", *("user" if place % 2 == 0 else "assistant" for place in range(turns - 1))]
        return [{"role": role, "content": self.text(size_bytes // turns)} for role in roles]


def raw(messages: list[dict[str, str]]) -> bytes:
    return orjson.dumps({"model": "m", "messages": messages, "max_tokens": 100, "stream": True})


def decided(reader: LocalReader, chain: Chain, body: bytes) -> tuple[float, Prompt]:
    """Milliseconds from bytes to blocks, and the prompt."""

    async def read() -> tuple[float, Prompt]:
        began = time.perf_counter()
        prompt = await reader.read(CHAT, orjson.loads(body), chain)
        return (time.perf_counter() - began) * 1e3, prompt

    return LOOP.run_until_complete(read())


def whole(reader: LocalReader, chain: Chain, body: bytes) -> float:
    """Milliseconds of the same without a cache: all of the text tokenized and hashed."""
    began = time.perf_counter()
    block_keys(chain, packed(reader.token_ids(CHAT, orjson.loads(body))), BLOCK_TOKENS)
    return (time.perf_counter() - began) * 1e3


def measured(reader: LocalReader, samples: int) -> dict[str, dict[str, float]]:
    writer = Writer(7)
    chain = Chain.root("m")
    makers: dict[str, Callable[[], list[dict[str, str]]]] = {
        "1 KB cold": lambda: writer.conversation(1_024, 2),
        "128 KB cold": lambda: writer.conversation(128 * 1_024, 40),
        "128 KB warm + 1 KB new": lambda: writer.conversation(128 * 1_024, 40),
    }
    rows = {}
    for name, make in makers.items():
        times, again, prompt = [], [], None
        for _ in range(samples):
            messages = make()
            if "warm" in name:
                decided(reader, chain, raw(messages))
                answer = {"role": "assistant", "content": writer.text(512)}
                messages = [*messages, answer, {"role": "user", "content": writer.text(512)}]
            took_ms, prompt = decided(reader, chain, raw(messages))
            times.append(took_ms)
            again.append(whole(reader, chain, raw(messages)))
        if prompt is None or prompt.basis != "exact":
            raise SystemExit(f"{name}: the prompt could not be read: {prompt}")
        times.sort()
        rows[name] = {
            "tokens": prompt.tokens,
            "p50_ms": median(times),
            "p90_ms": times[int(len(times) * 0.9)],
            "min_ms": times[0],
            "whole_p50_ms": median(again),
            "target_ms": TARGETS_MS[name],
        }
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--tokenizer", type=Path, default=TINY, help="folder with tokenizer.json and a chat template"
    )
    arguments.add_argument("--samples", type=int, default=40)
    arguments.add_argument("--json", action="store_true", help="print the numbers as JSON")
    given = arguments.parse_args()
    reader = local_reader(given.tokenizer, block_tokens=BLOCK_TOKENS)
    rows = measured(reader, given.samples)
    if given.json:
        print(json.dumps({"reader": reader.describe(), "cases": rows}))
        return
    table = Table(title=f"JSON to block keys, milliseconds: {reader.describe()}")
    for column in ("prompt", "tokens", "p50", "p90", "target", "whole", "ratio"):
        table.add_column(column, justify="left" if column == "prompt" else "right")
    for name, row in rows.items():
        met = "green" if row["p50_ms"] <= row["target_ms"] else "red"
        table.add_row(
            name,
            f"{row['tokens']:,}",
            f"[{met}]{row['p50_ms']:.2f}[/]",
            f"{row['p90_ms']:.2f}",
            f"{row['target_ms']:.1f}",
            f"{row['whole_p50_ms']:.2f}",
            f"{row['whole_p50_ms'] / row['p50_ms']:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    LOOP = asyncio.new_event_loop()
    main()
