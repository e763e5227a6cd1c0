"""How the prompts of a recorded engine run begin: which turns of ShareGPT its requests are, found by their lengths.

    python bench/prompts_of_sharegpt.py LOG --sharegpt ShareGPT_V3_unfiltered_cleaned_split.json \\
        --tokenizer tokenizer.json --out prompts.jsonl.gz
    python bench/prompts_of_sharegpt.py LOG --beginnings tests/recordings/sharegpt_beginnings_qwen3.jsonl --out …

LLMServingSim's runs ask turns of ShareGPT's first conversations, each with all before it
(casys-kaist/LLMServingSim, workloads/generators/sharegpt.py); their logs keep the lengths of prompt and answer, which
two turns seldom have in common. What comes out is a recording as `router serve --record` writes it, for
`router sim calibrate --prompts`: lengths, and ids of the blocks that several prompts begin with. No text, no tokens.
What was found before (`--beginnings-out` writes it: rows and ids, no lengths) needs the log alone.
"""

import argparse
import base64
import gzip
import hashlib
import itertools
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

BLOCK_TOKENS = 16
CONVERSATIONS = 9_000
"""The runs' turns are of the first 8,000 or so."""

Lengths = tuple[int, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--sharegpt", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--beginnings", type=Path, help="what was found before, in place of these two")
    parser.add_argument("--out", type=Path, help="where the prompts go, gzipped")
    parser.add_argument("--beginnings-out", type=Path)
    asked = parser.parse_args()
    wanted = [_lengths(json.loads(line)) for line in asked.log.read_text().splitlines()]
    if asked.beginnings is not None:
        known = beginnings(asked.beginnings)
    elif asked.sharegpt is not None and asked.tokenizer is not None:
        prompts = found(wanted, asked.sharegpt, Tokenizer.from_file(str(asked.tokenizer)))
        print(f"{sum(map(bool, prompts))} of {len(wanted)} requests are turns of the data set")
        known = common(prompts)
    else:
        parser.error("give --sharegpt and --tokenizer, or --beginnings")
    if asked.beginnings_out is not None:
        asked.beginnings_out.write_text("".join(_line({"t": place, **row}) for place, row in known.items()))
    if asked.out is not None:
        lengths = [tokens for tokens, _ in wanted]
        asked.out.write_bytes(gzip.compress("".join(recording(lengths, known)).encode(), 9, mtime=0))


def _lengths(row: dict[str, Any]) -> Lengths:
    return row["input_toks"], row["output_toks"]


def found(wanted: list[Lengths], sharegpt: Path, tokenizer: Any) -> list[list[int]]:
    """The tokens of each request's prompt; none where no turn has its lengths.

    Turns that share lengths are told apart by the requests that continue one of them.
    """
    here = set(wanted)
    turns: dict[Lengths, list[tuple[int, list[int]]]] = {}
    for place, conversation in enumerate(itertools.islice(conversations(sharegpt), CONVERSATIONS)):
        for prompt, answer in told(conversation):
            tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
            lengths = len(tokens), len(tokenizer.encode(answer, add_special_tokens=False).ids)
            if lengths in here:
                turns.setdefault(lengths, []).append((place, tokens))
    asked = Counter(place for lengths in here for place, _ in turns.get(lengths, ()))
    left = {lengths: sorted(each, key=lambda turn: -asked[turn[0]]) for lengths, each in turns.items()}
    return [(each.pop(0) if len(each) > 1 else each[0])[1] if (each := left.get(lengths)) else [] for lengths in wanted]


def conversations(path: Path) -> Iterator[list[dict[str, str]]]:
    """One by one, so that a file that was cut off is read as far as it goes."""
    text, at, decoder = path.read_text("utf-8", errors="ignore"), 1, json.JSONDecoder()
    while (at := text.find("{", at)) >= 0:
        try:
            row, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        yield row.get("conversations") or []


def told(conversation: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    """Prompts, each with all that was said before, and their answers; from the first that a person says."""
    said = list(itertools.dropwhile(lambda each: each["from"] not in ("human", "user"), conversation))
    before = ""
    for asked, answered in zip(said[::2], said[1::2], strict=False):
        prompt, answer = asked["value"].strip(), answered["value"].strip()
        if asked["from"] in ("human", "user") and answered["from"] == "gpt" and prompt and answer:
            yield f"{before} {prompt}".strip(), answer
            before = f"{before} {prompt} {answer}".strip()


def common(prompts: list[list[int]]) -> dict[int, dict[str, Any]]:
    """What prompts have in common, by row: `after` an earlier row, then ids of blocks that later ones share."""
    chains = [list(_chain(prompt)) for prompt in prompts]
    count = Counter(itertools.chain.from_iterable(chains))
    seen: dict[bytes, int] = {}
    number: dict[bytes, int] = {}
    known: dict[int, dict[str, Any]] = {}
    for place, chain in enumerate(chains):
        shared = [block for block in chain if count[block] > 1]
        kept = next((length for length in range(len(shared), 0, -1) if shared[length - 1] in seen), 0)
        row: dict[str, Any] = {}
        if kept:
            row["after"] = [seen[shared[kept - 1]], kept]
        if fresh := [number.setdefault(block, len(number)) for block in shared[kept:]]:
            row["ids"] = base64.b64encode(struct.pack(f"<{len(fresh)}Q", *fresh)).decode()
        for block in shared:
            seen.setdefault(block, place)
        if row:
            known[place] = row
    return known


def beginnings(path: Path) -> dict[int, dict[str, Any]]:
    """What `common` found, as it was written."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row.pop("t"): row for row in rows}


def recording(lengths: list[int], known: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Lines of a recording: prompts of these lengths that begin so."""
    yield _line({"schema": "prefix-router.trace", "version": 1, "block_tokens": BLOCK_TOKENS, "started_s": 0})
    for place, tokens in enumerate(lengths):
        yield _line({"t": place, "prompt_tokens": tokens, "status": 200, **known.get(place, {})})


def _chain(tokens: list[int]) -> Iterator[bytes]:
    digest = b""
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = struct.pack(f"<{BLOCK_TOKENS}I", *tokens[start : start + BLOCK_TOKENS])
        digest = hashlib.blake2b(digest + block, digest_size=16).digest()
        yield digest


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    main()
