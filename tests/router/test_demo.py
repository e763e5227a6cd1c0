"""The demo: its bound by hand, and a small run of the whole thing over real processes."""

import json
from dataclasses import dataclass

import aiohttp
import pytest

from router import cli
from router.demo import Row, _answering, _process, best_hit_rate
from router.errors import RouterError


@dataclass(frozen=True)
class _Turn:
    prompt_ids: tuple[int, ...]
    time_s: float = 0.0
    user: int = 0
    answer_ids: tuple[int, ...] = (1,)


def test_the_bound_counts_whole_blocks_and_never_the_last_token() -> None:
    first = tuple(range(40))
    turns = [_Turn(first), _Turn(first), _Turn(first[:32]), _Turn(first[:33])]

    assert best_hit_rate(turns) == pytest.approx((0 + 32 + 16 + 32) / (40 + 40 + 32 + 33))


def test_a_row_tells_what_the_replicas_computed() -> None:
    row = Row("p", requests=2, failed=0, ttft_s=(0.1, 0.2, 0.3), prompt_tokens=100, computed_tokens=40, imbalance=1.2)

    assert row.as_json == {
        "policy": "p",
        "requests": 2,
        "failed": 0,
        "hit_rate": 0.6,
        "ttft_s": {"p50": 0.1, "p95": 0.2, "p99": 0.3},
        "prompt_tokens": 100,
        "computed_tokens": 40,
        "imbalance": 1.2,
    }


@pytest.mark.timeout(90)
def test_a_short_run_prints_json_alone_and_prefixes_beat_turns(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "demo",
        "--json",
        "--requests",
        "120",
        "--rate",
        "40",
        "--policy",
        "round-robin",
        "--policy",
        "prefix-aware",
        "--approximate",
    ]

    assert cli.main(words) == 0

    told = json.loads(capsys.readouterr().out)
    turns, _, prefixes, guessed = told["policies"]
    assert guessed["policy"] == "prefix-aware, no events"
    assert guessed["prompt_tokens"] == prefixes["prompt_tokens"]
    assert turns["hit_rate"] < guessed["hit_rate"]
    assert (turns["policy"], turns["requests"], turns["failed"]) == ("round-robin", 120, 0)
    assert (prefixes["policy"], prefixes["requests"], prefixes["failed"]) == ("prefix-aware", 120, 0)
    assert turns["prompt_tokens"] == prefixes["prompt_tokens"] > 120 * 1_200
    assert prefixes["computed_tokens"] < turns["computed_tokens"]
    assert 0 < turns["hit_rate"] < prefixes["hit_rate"] <= told["best_hit_rate"]
    assert prefixes["imbalance"] < 1.5


def test_an_unknown_policy_is_said_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--policy", "prefix-awar"]) == 2
    assert "did you mean 'prefix-aware'" in capsys.readouterr().err


async def test_a_process_that_ends_at_once_tells_why() -> None:
    async with aiohttp.ClientSession() as client, _process(["replica", "--profile", "no-such-gpu"]) as started:
        with pytest.raises(RouterError, match=r"exit code 2: router: no profile is named 'no-such-gpu'"):
            await _answering(client, started)


async def test_a_process_that_answers_is_ended_with_its_block() -> None:
    async with aiohttp.ClientSession() as client:
        async with _process(["replica", "--blocks", "64"]) as started:
            await _answering(client, started)
            started.check()
        assert started.process.returncode == 0
