"""`router sim` as a user types it: a trace or a preset in, tables, JSON, CSV or a page out, and exit codes."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from router.cli import main

POLICIES = ("round-robin", "prefix-aware")


@pytest.fixture
def trace(tmp_path):
    """Sixty requests of four conversations in Mooncake's format."""
    file = tmp_path / "mooncake.jsonl"
    rows = []
    for number in range(60):
        turn, who = divmod(number, 4)
        blocks = [0, *(100 * who + place for place in range(1, turn + 2))]
        rows.append(
            {"timestamp": 50 * number, "input_length": 512 * len(blocks) - 7, "output_length": 9, "hash_ids": blocks}
        )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def told(capsys, *words, code=0):
    assert main(["sim", *words]) == code
    return capsys.readouterr()


def compared(capsys, trace, *words):
    out, _ = told(capsys, "--trace", trace, "--policy", ",".join(POLICIES), "--json", *words)
    return json.loads(out)


def test_json_is_alone_on_stdout(capsys, trace):
    out, err = told(capsys, "--trace", trace, "--policy", "round-robin", "--policy", "prefix-aware", "--json")
    document = json.loads(out)
    assert document["trace"] == "mooncake.jsonl"
    assert document["seed"] == 1
    assert [row["policy"] for row in document["policies"]] == list(POLICIES)
    assert [row["policy"] for row in document["bounds"]] == ["no cache", "one infinite cache", "oracle"]
    assert "note:" in err


def test_two_runs_print_the_same(capsys, trace):
    assert compared(capsys, trace) == compared(capsys, trace)


def test_options_reach_the_run(capsys, trace):
    words = ("--requests", "20", "--replicas", "2", "--blocks", "300", "--block-size", "128", "--seed", "7")
    more = ("--profile", "llama-3.1-8b-a100", "--max-num-seqs", "8", "--max-num-batched-tokens", "2048")
    setup = (document := compared(capsys, trace, *words, *more))["setup"]
    assert document["seed"] == 7
    assert document["policies"][0]["requests"] == 20
    assert (setup["replicas"], setup["blocks"], setup["block_tokens"]) == (2, 300, 128)
    assert (setup["profile"], setup["max_num_seqs"], setup["max_batched_tokens"]) == ("llama-3.1-8b-a100", 8, 2048)


def test_the_cache_is_as_large_as_the_profile_says(capsys, trace):
    setup = compared(capsys, trace, "--profile", "qwen3-32b-h100-x2", "--requests", "5")["setup"]
    assert setup["blocks"] == 307_328 // 512


def test_the_routers_belief_reaches_the_run(capsys, trace):
    words = ("--index", "events", "--event-lag", "0.5", "--event-loss", "0.1", "--index-capacity", "2")
    belief = compared(
        capsys, trace, *words, "--no-speculative", "--knows-answers", "--no-correction", "--report-every", "0"
    )["setup"]["belief"]
    assert belief == {
        "source": "events",
        "lag_s": 0.5,
        "lost_fraction": 0.1,
        "capacity_factor": 2.0,
        "speculative": False,
        "knows_answers": True,
        "corrected": False,
        "report_every_s": 0.0,
    }


def test_lags_may_differ_and_a_capacity_may_be_unknown(capsys, trace):
    belief = compared(capsys, trace, "--event-lag", "0.1,2", "--index-capacity", "unknown")["setup"]["belief"]
    assert (belief["lag_s"], belief["capacity_factor"]) == ([0.1, 2.0], None)


def test_two_processes_print_the_same_bytes(trace):
    """String hashes differ between processes: nothing may depend on them."""
    words = [sys.executable, "-m", "router", "sim", "--trace", trace, "--policy", "all", "--json", "--requests", "30"]
    first, second = (
        subprocess.run(  # noqa: S603 -- our own program
            words, capture_output=True, check=True, timeout=60, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second


def test_limits_decide_what_is_good(capsys, trace):
    strict = compared(capsys, trace, "--slo-ttft", "0.000001")["policies"][0]
    loose = compared(capsys, trace, "--slo-ttft", "1000", "--slo-tpot", "1000")["policies"][0]
    assert (strict["goodput_fraction"], loose["goodput_fraction"]) == (0.0, 1.0)


def test_several_seeds_have_a_spread(capsys, trace):
    document = compared(capsys, trace, "--seeds", "3", "--seed", "5")
    assert document["seeds"] == [5, 6, 7]
    assert "hit_rate" in document["policies"][0]["spread"]


def test_bounds_can_be_left_out(capsys, trace):
    assert compared(capsys, trace, "--no-bounds")["bounds"] == []


def test_all_are_all_that_are_installed(capsys, trace):
    main(["policies", "--json"])
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["policies"]]
    out, _ = told(capsys, "--trace", trace, "--requests", "8", "--policy", "all", "--json", "--no-bounds")
    assert [row["policy"] for row in json.loads(out)["policies"]] == names


class FirstOfAll:
    """A policy of somebody else's."""

    def choose(self, request, replicas):
        return replicas[0].name


def test_a_policy_of_ones_own(capsys, trace):
    own = f"{__name__}:FirstOfAll"
    out, _ = told(capsys, "--trace", trace, "--policy", f"round-robin,{own}", "--json")
    assert [row["policy"] for row in json.loads(out)["policies"]] == ["round-robin", own]


def test_tables_for_people(capsys, trace):
    out, _ = told(capsys, "--trace", trace)
    for word in ("one infinite cache", "prefix-aware", "TTFT mean", "imbalance"):
        assert word in out


def test_csv_has_a_line_for_every_policy(capsys, trace):
    out, _ = told(capsys, "--trace", trace, "--csv", "--no-bounds", "--policy", ",".join(POLICIES))
    assert [line["policy"] for line in csv.DictReader(io.StringIO(out))] == list(POLICIES)


def test_a_page_is_written_beside_what_is_printed(capsys, trace, tmp_path):
    page = tmp_path / "page.html"
    out, err = told(capsys, "--trace", trace, "--html", str(page), "--json")
    assert json.loads(out)["policies"]
    assert str(page) in err
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_lengths_only_are_said_and_never_a_rate_of_nothing(capsys, tmp_path):
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,374,44\n2023-11-16 18:17:04.03,396,109\n"
    )
    out, _ = told(capsys, "--trace", str(file), "--policy", "round-robin")
    assert "lengths only: no prefix analysis" in out
    assert "delivered" not in out
    out, err = told(capsys, "--trace", str(file), "--policy", "round-robin", "--json")
    assert json.loads(out)["policies"][0]["hit_rate"] is None
    assert "lengths only: no prefix analysis" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "no-such"), "no policy is named 'no-such'"),
        (("--profile", "llama-3.1-8b-h1000"), "did you mean llama-3.1-8b-h100"),
        (("--max-num-seqs", "9000"), "--max-num-batched-tokens must be at least"),
        (("--tenants", "3"), "--tenants has no meaning with --trace"),
        (("--slo-ttft", "0"), "0 is not more than 0"),
        (("--event-loss", "2"), "no fraction"),
        (("--event-lag", "-1"), "less than 0"),
        (("--tokenizer", "/nowhere"), "--tokenizer"),
        (("--json", "--csv"), "not allowed with"),
        (("--polcy", "x"), "did you mean --policy"),
        (("calibrate", "--hold-out", "x"), "did you mean --held-out"),
    ],
)
def test_what_cant_be_used_as_asked_ends_with_2(capsys, trace, words, said):
    _, err = told(capsys, "--trace", trace, *words, code=2)
    assert said in err


def test_a_trace_and_a_preset_are_one_too_many(capsys, trace):
    _, err = told(capsys, "--trace", trace, "--preset", "chat", code=2)
    assert "not allowed with" in err


def test_a_bad_row_ends_with_1_and_says_where(capsys, trace):
    with Path(trace).open("a", encoding="utf-8") as file:
        file.write('{"timestamp": 1}\n')
    _, err = told(capsys, "--trace", trace, code=1)
    assert "line 61" in err
    assert "--skip-bad" in err
    out, err = told(capsys, "--trace", trace, "--skip-bad", "--json")
    assert json.loads(out)["policies"][0]["requests"] == 60
    assert "1 bad row" in err


def test_a_missing_trace_ends_with_1(capsys, tmp_path):
    _, err = told(capsys, "--trace", str(tmp_path / "none.jsonl"), code=1)
    assert "none.jsonl" in err


def test_a_page_that_cant_be_written_ends_with_1(capsys, trace, tmp_path):
    _, err = told(capsys, "--trace", trace, "--html", str(tmp_path / "no" / "page.html"), code=1)
    assert "page.html" in err


def test_exit_codes_are_in_the_help(capsys):
    out, _ = told(capsys, "--help")
    assert "exit codes: 0 done; 1 failed" in out


def test_the_lesson_is_told_to_the_token_and_then_simulated(capsys):
    out, _ = told(
        capsys, "--preset", "lesson", "--json", "--policy", "prefix-aware", "--no-bounds", "--requests", "200"
    )
    document = json.loads(out)
    assert document["preset"] == "lesson"
    assert [row["computed_tokens"] for row in document["lesson"]] == [
        2_581_118, 187_102, 831_582, 1_083_470, 2_583_518, 1_123_214, 572_238, 211_774, 879_390, 198_702,
    ]  # fmt: skip
    assert document["policies"][0]["requests"] == 200
    assert document["policies"][0]["hit_rate"] > 0.5


def test_a_preset_brings_its_fleet_and_options_change_both(capsys):
    words = ("--preset", "tenants", "--policy", "round-robin", "--no-bounds", "--json", "--requests", "40")
    document = json.loads(told(capsys, *words).out)
    setup = document["setup"]
    assert (setup["replicas"], setup["blocks"], setup["profile"]) == (8, 19_208, "qwen3-32b-h100-x2")
    assert "lesson" not in document
    more = ("--replicas", "2", "--blocks", "9000", "--rate", "5", "--salt", "user", "--cache-outputs", "off")
    setup = json.loads(told(capsys, *words, *more).out)["setup"]
    assert (setup["replicas"], setup["blocks"]) == (2, 9_000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--preset", "lessn"), "did you mean 'lesson'"),
        (("--preset", "lesson", "--requests", "5000"), "1200 requests"),
        (("--preset", "lesson", "--replay", "think"), "no thinking"),
        (("--preset", "chat", "--skip-bad"), "--skip-bad has no meaning with --preset"),
    ],
)
def test_a_preset_that_cant_be_had_ends_with_2(capsys, words, said):
    _, err = told(capsys, *words, code=2)
    assert said in err


def test_a_trace_is_described_and_nothing_simulated(capsys, trace):
    out, _ = told(capsys, "--trace", trace, "--describe")
    assert "ideal hit rate" in out
    assert "TTFT" not in out
    document = json.loads(told(capsys, "--trace", trace, "--describe", "--json").out)
    assert document["requests"] == 60
    assert document["prefixes"]["unique_ids"] == 1 + 4 * 15
    _, err = told(capsys, "--preset", "chat", "--describe", code=2)
    assert "name one with --trace" in err


def test_a_trace_is_swept_in_several_processes(capsys, trace):
    words = ("--trace", trace, "--rate", "20,40", "--policy", "round-robin", "--no-search", "--workers", "2", "--json")
    assert json.loads(told(capsys, "sweep", *words).out)["trace"] == "mooncake.jsonl"


def test_a_sweep_stands_beside_it(capsys):
    words = ("--preset", "api", "--requests", "30", "--rate", "20,40", "--policy", "round-robin", "--no-search")
    assert json.loads(told(capsys, "sweep", *words, "--workers", "1", "--json").out)


@pytest.mark.parametrize("command", ["sweep", "calibrate"])
def test_commands_below_have_help_and_tell_their_exit_codes(capsys, command):
    out, _ = told(capsys, command, "--help")
    assert f"usage: router sim {command}" in out
    assert "exit codes" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sweep", "--preset", "chatt"), "did you mean 'chat'"),
        (("sweep", "--time-unit", "ms"), "--time-unit has no meaning without --trace"),
        (("sweep", "--profile", "h100"), "no profile is named 'h100'"),
        (("calibrate", "log.jsonl", "--profile", "h100"), "no profile is named 'h100'"),
    ],
)
def test_what_can_not_be_used_as_asked_ends_with_2(capsys, words, said):
    _, err = told(capsys, *words, code=2)
    assert said in err


def test_a_log_that_is_not_there_ends_with_1(capsys, tmp_path):
    _, err = told(capsys, "calibrate", str(tmp_path / "none.jsonl"), code=1)
    assert "none.jsonl" in err
