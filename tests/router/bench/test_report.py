"""A run in words: the table, the JSON, and the notes without which figures mislead."""

import io
import json

import pytest
from rich.console import Console

from router.bench.about import Counted
from router.bench.phases import Plan
from router.bench.report import Report, as_json, percent, seconds, tables
from router.bench.results import Target
from router.usage import Usage
from tests.answers import OTHER, SIDE, answer, phase

PLAN = Plan("r", (2.0,), 8, None, 1, 64)
TOLD = Usage(10, 5, 3)


NO_TARGET = Target()


def report(*phases, sides=(SIDE,), plan=PLAN, target=NO_TARGET, **changes):
    return Report("2026-01-01T00:00:00+00:00", sides, plan, target, phases, {"requests": 8}, **changes)


def printed(one):
    out = io.StringIO()
    Console(width=200, file=out).print(tables(one))
    return out.getvalue()


def test_the_document_records_what_was_measured_beside_the_figures():
    one = report(
        phase(answer(0, usage=TOLD)), phase(answer(0, usage=TOLD), name="warm"), prompt_version="v7", target=Target(1.0)
    )
    told = json.loads(json.dumps(as_json(one)))
    assert (told["date"], told["prompt_version"], told["settings"]) == (one.date, "v7", {"requests": 8})
    assert {"prefix-router", "python"} == set(told["versions"])
    (side,) = told["sides"]
    assert (side["url"], side["model"], side["template"], side["adapter_of"]) == ("http://a:8000", "m", "abcd", None)
    assert set(side["prompts"]) == {"unique"}
    cold, warm = told["phases"]
    assert (cold["phase"], warm["phase"], cold["rate_per_s"]) == ("cold", "warm", 2.0)
    assert cold["ttft_s"] == {"p50": pytest.approx(0.1), "p95": pytest.approx(0.1)}
    assert (cold["cached_tokens"], cold["cached_source"], cold["in_time_fraction"]) == (5, "usage", 1.0)
    assert told["ratios_b_over_a"] == []
    assert told["notes"] == []
    assert not one.failed


def test_ratios_are_there_when_sides_took_turns():
    plan = Plan("r", (2.0,), 8, None, 1, 64, interleaved=True)
    answers = [answer(number, usage=TOLD) for number in range(9)]
    one = report(phase(*answers), phase(*answers, side=OTHER), sides=(SIDE, OTHER), plan=plan)
    (row,) = as_json(one)["ratios_b_over_a"]
    assert row["ttft"] == {"ratio": 1.0, "low": 1.0, "high": 1.0, "pairs": 9}
    text = printed(one)
    assert "1.000 (1.000 to 1.000)" in text
    assert "B  http://b:8000: m, an adapter of base, template unknown, version 0.32.0" in text


def test_what_is_unknown_is_a_dash_and_told():
    text = printed(report(phase(answer(0, ttft=None))))
    assert "–" in text
    assert "0.0%" not in text
    assert "does not tell cached tokens" in text


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([phase(answer(0), answer(1, error="http 429"), answer(2, error="http 429"))], "failed: 2 http 429"),
        ([phase(answer(0), answer(1, late=0.3))], "1 of 2 requests got out more than 50 ms late (the latest 300 ms)"),
        ([phase(answer(0, usage=TOLD), answer(1))], "only 1 of 2 answers told their cached tokens"),
        ([phase(answer(0), counted=Counted(10, 5))], "from the engines' counters, which count whoever asks"),
    ],
)
def test_a_doubt_is_a_note(phases, words):
    assert any(words in note for note in report(*phases).notes)


def test_a_run_without_an_answer_or_with_a_bad_one_failed():
    assert report().failed
    assert report(phase(answer(0), answer(1, error="cut"))).failed
    assert "interrupted" in report(phase(answer(0)), interrupted=True).notes[0]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0.0123, "12.3 ms"), (0.123, "123 ms"), (1.234, "1.23 s"), (0.0, "0.0 ms")]
)
def test_seconds_are_short(value, shown):
    assert seconds(value) == shown
    assert percent(None) == "–"
