"""`router demo`: the same traffic over four emulated replicas, once per policy, and one table of what came of it.

Everything is real but the GPUs: each replica and each gateway is a process of its own on loopback ports, and every
request is an open-loop HTTP stream. The one rule: hit rate and computed tokens are what the replicas report, not what
the router hopes for. Not here: the traffic and the replicas' engine (`sim`), which the command line passes in.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any, Protocol

import aiohttp
import numpy as np
import orjson
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from policies.blocks import Chain, block_keys, hittable_blocks, packed
from router.bench.about import Counted, counted
from router.bench.driver import Answer, Ask, connected, driven
from router.bench.groups import COMPLETIONS
from router.errors import RouterError

POLICIES = ("round-robin", "user-hash", "prefix-aware")
REPLICAS = 4
BLOCK_TOKENS = 16
ANSWER_TOKENS = 32
"""Answers are cut to this many tokens: the demo is about prompts, and must run on two cores."""
VOCABULARY = 4096
"""The traffic's ids are folded into the vocabulary of the tokenizer that ships with the router."""
_START_S = 30.0
_ANSWER_S = 120.0
_TOLD_CHARS = 2000
"""The last words of a process that failed; more than an error needs."""


@dataclass(frozen=True, slots=True)
class _Started:
    """A `router` command that runs, or ran."""

    url: str
    process: asyncio.subprocess.Process
    errors: IO[bytes]

    def check(self) -> None:
        """Raises `RouterError` with the process's own words when it has ended."""
        if self.process.returncode is None:
            return
        self.errors.seek(0)
        told = self.errors.read().decode("utf-8", "replace").strip()[-_TOLD_CHARS:]
        raise RouterError(f"a process of the demo ended with exit code {self.process.returncode}: {told or 'no words'}")


class Turn(Protocol):
    """One request of the traffic."""

    @property
    def time_s(self) -> float: ...
    @property
    def user(self) -> int | str: ...
    @property
    def prompt_ids(self) -> Sequence[int]: ...
    @property
    def answer_ids(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy came to."""

    policy: str
    requests: int
    failed: int
    ttft_s: tuple[float, float, float]
    """p50, p95, p99."""
    prompt_tokens: int
    computed_tokens: int
    imbalance: float
    """Most computed tokens on one replica over their mean."""

    @property
    def hit_rate(self) -> float:
        return 1 - self.computed_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def as_json(self) -> dict[str, Any]:
        p50, p95, p99 = self.ttft_s
        return {
            "policy": self.policy,
            "requests": self.requests,
            "failed": self.failed,
            "hit_rate": round(self.hit_rate, 4),
            "ttft_s": {"p50": round(p50, 4), "p95": round(p95, 4), "p99": round(p99, 4)},
            "prompt_tokens": self.prompt_tokens,
            "computed_tokens": self.computed_tokens,
            "imbalance": round(self.imbalance, 3),
        }


def best_hit_rate(turns: Sequence[Turn]) -> float:
    """The hit rate of one cache without bound that has seen every earlier prompt: what no policy can beat."""
    seen: set[bytes] = set()
    prompt_tokens = hit_tokens = 0
    for turn in turns:
        keys = block_keys(Chain.root("demo"), packed(turn.prompt_ids), BLOCK_TOKENS)
        limit = hittable_blocks(len(turn.prompt_ids), BLOCK_TOKENS)
        hits = next((place for place, key in enumerate(keys[:limit]) if key not in seen), limit)
        prompt_tokens += len(turn.prompt_ids)
        hit_tokens += hits * BLOCK_TOKENS
        seen.update(keys)
    return hit_tokens / prompt_tokens if prompt_tokens else 0.0


def run(
    turns: Sequence[Turn],
    *,
    blocks: int,
    policies: Sequence[str] = POLICIES,
    approximate: bool = False,
    as_json: bool = False,
) -> int:
    """Run the demo and print its table, or its JSON alone on stdout. 1 when a request failed.

    The replicas publish KV events, so each cache is known exactly; `approximate` runs every policy once more without.
    """
    console = Console(stderr=True)
    best = best_hit_rate(turns)
    try:
        runs = [(policy, events) for policy in policies for events in ((True, False) if approximate else (True,))]
        rows = asyncio.run(_rows(turns, runs, blocks, console))
    except aiohttp.ClientError as error:
        raise RouterError(f"the demo lost a process of its own: {type(error).__name__}") from error
    if as_json:
        told = {"policies": [row.as_json for row in rows], "best_hit_rate": round(best, 4)}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        Console().print(_table(rows, best, blocks))
    return int(any(row.failed for row in rows))


async def _rows(turns: Sequence[Turn], runs: Sequence[tuple[str, bool]], blocks: int, console: Console) -> list[Row]:
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected({}, _ANSWER_S))
        progress = stack.enter_context(Progress(*columns, console=console))
        starting = progress.add_task("4 replicas", total=REPLICAS)
        replicas = []
        for number in range(1, REPLICAS + 1):
            words = ["replica", "--name", f"r{number}", "--blocks", str(blocks), "--block-size", str(BLOCK_TOKENS)]
            words += ["--kv-events", "auto"]
            replicas.append(await stack.enter_async_context(_process(words)))
        for replica in replicas:
            await _answering(client, replica)
            progress.advance(starting)
        urls = [replica.url for replica in replicas]
        rows = []
        for policy, events in runs:
            shown = policy if events else f"{policy}, no events"
            task = progress.add_task(shown, total=len(turns))
            for url in urls:
                async with client.post(f"{url}/reset_prefix_cache") as answer:
                    answer.raise_for_status()
            words = ["serve", "--replicas", ",".join(urls), "--policy", policy, "--admin-port", "0"]
            words += ["--kv-events", "auto" if events else "off"]
            async with _process([*words, "--log-level", "warning"]) as gateway:
                await _answering(client, gateway)
                rows.append(await _row(client, gateway.url, urls, shown, turns, lambda: progress.advance(task)))  # noqa: B023
        return rows


async def _row(
    client: aiohttp.ClientSession,
    gateway: str,
    replicas: Sequence[str],
    policy: str,
    turns: Sequence[Turn],
    advanced: Callable[[], None],
) -> Row:
    answers: list[Answer] = []

    def told(answer: Answer) -> None:
        answers.append(answer)
        advanced()

    before = [await _counted(client, url) for url in replicas]
    await driven(client, gateway, (_ask(turn, turns[0].time_s) for turn in turns), told)
    after = [await _counted(client, url) for url in replicas]
    prompts = [late.queried_tokens - early.queried_tokens for early, late in zip(before, after, strict=True)]
    hits = [late.hit_tokens - early.hit_tokens for early, late in zip(before, after, strict=True)]
    computed = [prompt - hit for prompt, hit in zip(prompts, hits, strict=True)]
    good = [answer.ttft_s for answer in answers if not answer.error and answer.ttft_s is not None]
    p50, p95, p99 = np.percentile(good, [50, 95, 99]) if good else (0.0, 0.0, 0.0)
    mean = sum(computed) / len(computed)
    return Row(
        policy=policy,
        requests=len(turns),
        failed=len(turns) - len(good),
        ttft_s=(float(p50), float(p95), float(p99)),
        prompt_tokens=sum(prompts),
        computed_tokens=sum(computed),
        imbalance=max(computed) / mean if mean else 1.0,
    )


def _ask(turn: Turn, start_s: float) -> Ask:
    body = {
        "model": "tiny",
        "prompt": [token % VOCABULARY for token in turn.prompt_ids],
        "max_tokens": min(len(turn.answer_ids), ANSWER_TOKENS),
        "stream": True,
    }
    return Ask(turn.time_s - start_s, COMPLETIONS, orjson.dumps(body), {"X-User-Id": str(turn.user)})


async def _counted(client: aiohttp.ClientSession, url: str) -> Counted:
    """Prompt tokens a replica was asked for, and those it found cached, since it started."""
    counts = await counted(client, [url])
    if counts is None:
        raise RouterError(f"{url} tells no prefix-cache counters; was a replica of the demo ended by somebody?")
    return counts


async def _answering(client: aiohttp.ClientSession, started: _Started) -> None:
    """Return when `/health` answers 200. Raises `RouterError` when the process ends, or after half a minute."""
    try:
        async with asyncio.timeout(_START_S):
            while True:
                started.check()
                try:
                    async with client.get(f"{started.url}/health") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise RouterError(f"{started.url} did not answer within {_START_S:g} s; is this machine overloaded?") from None


@asynccontextmanager
async def _process(words: Sequence[str]) -> AsyncIterator[_Started]:
    """A `router` command on a free loopback port for as long as the block lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as errors:
        # -I keeps the current folder off the import path, where another package may carry one of our names.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", "router", *words, "--port", str(port)),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=errors,
            env={name: value for name, value in os.environ.items() if not name.startswith("ROUTER_")},
        )
        try:
            yield _Started(f"http://127.0.0.1:{port}", process, errors)
        finally:
            await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(5):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _table(rows: Sequence[Row], best: float, blocks: int) -> Table:
    table = Table(
        title=f"{REPLICAS} emulated replicas, {blocks:,} blocks of {BLOCK_TOKENS} tokens each",
        caption=f"hit rate and prefill as the replicas report them; no policy can beat {best:.1%}",
        box=box.SIMPLE,
        padding=0,
        pad_edge=False,
    )
    table.add_column("policy", no_wrap=True)
    for name in ("sent", "hit rate", "TTFT p50", "p95", "p99", "prefill", "imbalance"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.policy,
            f"{row.requests}" if not row.failed else f"{row.requests} ({row.failed} failed)",
            f"{row.hit_rate:.1%}",
            *(f"{1000 * seconds:.0f}ms" for seconds in row.ttft_s),
            f"{row.computed_tokens / 1000:,.0f}k",
            f"{row.imbalance:.2f}",
        )
    return table
