"""JSON of a fixed shape, and CSV with a line for every row and seed."""

import csv
import io
import json

import pytest

from sim.compare import compare, lesson_rows
from sim.report_json import as_csv, as_json
from sim.run import Setup
from tests.sim.loads import chats

SETUP = Setup(replicas=3, blocks=400)
POLICIES = ("round-robin", "prefix-aware")


@pytest.fixture(scope="module")
def comparison():
    return compare(lambda seed: chats(seed=seed), POLICIES, SETUP, seeds=(1, 2))


def test_the_object_has_the_promised_members(comparison):
    told = json.loads(as_json(comparison))
    assert told["preset"] == "chats"
    assert told["seed"] == 1
    assert [row["policy"] for row in told["policies"]] == list(POLICIES)
    for row in told["policies"]:
        assert {"requests", "prompt_tokens", "computed_tokens", "goodput", "imbalance"} <= set(row)
        assert 0 < row["hit_rate"] <= 1
        assert 0 < row["predicted_hit_rate"] <= row["available_hit_rate"] <= 1
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            assert set(row[name]) == {"mean", "p50", "p95", "p99"}
        assert [part["name"] for part in row["tenants"]] == ["t0", "t1"]
        assert row["spread"]["hit_rate"]["min"] <= row["hit_rate"] <= row["spread"]["hit_rate"]["max"]
    assert "lesson" not in told


def test_a_trace_is_called_a_trace():
    told = json.loads(as_json(compare(lambda _: chats(), POLICIES, SETUP, source="trace", with_bounds=False)))
    assert told["trace"] == "chats"
    assert "preset" not in told
    assert "spread" not in told["policies"][0]


def test_the_lesson_stands_beside_the_policies(comparison):
    from dataclasses import replace

    told = json.loads(as_json(replace(comparison, lesson=lesson_rows())))
    assert len(told["lesson"]) == 10
    assert set(told["lesson"][0]) == {"scenario", "blocks", "hit_rate", "computed_tokens", "prompt_tokens"}


def test_what_is_not_known_is_null():
    told = json.loads(as_json(compare(lambda _: chats(has_prefixes=False), ("round-robin",), SETUP)))
    (row,) = told["policies"]
    assert row["hit_rate"] is None
    assert row["computed_tokens"] is None
    assert told["notes"].count("lengths only: no prefix analysis") == 1


def test_two_runs_give_the_same_bytes(comparison):
    again = compare(lambda seed: chats(seed=seed), POLICIES, SETUP, seeds=(1, 2))
    assert as_json(again) == as_json(comparison)
    assert as_csv(again) == as_csv(comparison)


def test_csv_has_a_line_for_every_row_and_seed(comparison):
    lines = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    assert len(lines) == 2 * (3 + 2)
    assert [line["seed"] for line in lines[:2]] == ["1", "2"]
    named = {(line["policy"], line["seed"]): line for line in lines}
    policy = comparison.rows[1].results[0]
    assert float(named["prefix-aware", "1"]["ttft_s.p99"]) == policy.ttft_s.p99
    assert named["no cache", "1"]["ttft_s.p99"] == ""
