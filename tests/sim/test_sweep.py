"""The command of a sweep: what stands on stdout, in the CSV, and what is said of arguments it can't use."""

import argparse
import csv
import json
from pathlib import Path

import pytest

from sim.errors import OptionError
from sim.sweep import add_arguments, main

SMALL = ("--requests", "200", "--workers", "1", "--replicas", "2", "--policy", "round-robin,prefix-aware")


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser.parse_args(words)


def test_json_stands_alone_and_rows_are_written(tmp_path, capsys):
    path = tmp_path / "points.csv"
    assert main(parsed(*SMALL, "--rate", "20,80", "--limit", "ttft-p95=0.2", "--json", "--csv", str(path))) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["limit"] == {"quantity": "ttft", "point": "p95", "seconds": 0.2}
    assert [(curve["policy"], len(curve["points"])) for curve in found["curves"]] == [
        ("round-robin", 2),
        ("prefix-aware", 2),
    ]
    assert len(found["needs"]) == 2
    assert len(found["sentences"]) == 1
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 4
    assert float(rows[0]["ttft_p95_s"]) == pytest.approx(found["curves"][0]["points"][0]["ttft_s"]["p95"])


def test_the_table_names_policies_and_knees(capsys):
    assert main(parsed(*SMALL, "--rate", "20", "--no-search")) == 0
    told = capsys.readouterr()
    assert "round-robin" in told.out
    assert "> 20" in told.out
    assert "simulating" not in told.out


def rows_of_a_trace(path: Path) -> str:
    rows = [
        {"timestamp": 100 * place, "input_length": 1024 + 512 * (place % 3), "output_length": 20, "hash_ids": ids}
        for place in range(40)
        for ids in [list(range(2)) + [10 * place + part for part in range(2, 3 + place % 3)][: place % 3]]
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_trace_is_stretched_to_every_rate(tmp_path, capsys):
    path = rows_of_a_trace(tmp_path / "log.jsonl")
    words = ("--policy", "round-robin", "--replicas", "2", "--blocks", "200", "--workers", "1", "--no-search", "--json")
    assert main(parsed("--trace", path, "--rate", "5,20", *words)) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["trace"] == "log.jsonl"
    slow, fast = found["curves"][0]["points"]
    assert slow["requests"] == fast["requests"] == 40
    assert slow["duration_s"] == pytest.approx(39 / 5, abs=0.5)
    assert fast["duration_s"] == pytest.approx(39 / 20, abs=0.5)
    assert "times were stretched to each of the rates" in told.err
    assert main(parsed("--trace", path, *words)) == 0
    own = [point["rate"] for point in json.loads(capsys.readouterr().out)["curves"][0]["points"]]
    assert own == pytest.approx([40 / 3.9 * factor for factor in (0.5, 1, 2, 4)])


def test_several_seeds_give_a_mean_and_a_spread(capsys):
    words = (*SMALL, "--rate", "60", "--no-search", "--json")
    singly = []
    for seed in ("1", "2"):
        assert main(parsed(*words, "--seed", seed)) == 0
        singly.append(json.loads(capsys.readouterr().out)["curves"][0]["points"][0]["ttft_s"]["p95"])
    assert main(parsed(*words, "--seeds", "2")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == [1, 2]
    point = found["curves"][0]["points"][0]
    assert point["ttft_s"]["p95"] == pytest.approx(sum(singly) / 2)
    assert point["spread"] == pytest.approx(sorted(singly))
    assert main(parsed(*words[:-1], "--seeds", "2")) == 0
    assert "±" in capsys.readouterr().out


def test_what_belongs_to_a_trace_or_a_preset_is_said(tmp_path):
    path = rows_of_a_trace(tmp_path / "log.jsonl")
    with pytest.raises(OptionError, match="--time-unit has no meaning without --trace"):
        main(parsed(*SMALL, "--time-unit", "ms"))
    with pytest.raises(OptionError, match="--salt has no meaning with --trace"):
        main(parsed("--trace", path, "--salt", "user"))


@pytest.mark.parametrize(
    ("words", "blocks"),
    [
        ((), 5_000),
        (("--block-size", "32"), 2_500),
        (("--profile", "llama-3.1-8b-h100"), 28_117),
        (("--profile", "llama-3.1-8b-h100", "--block-size", "32"), 14_058),
        (("--blocks", "4000", "--block-size", "32"), 4_000),
    ],
)
def test_a_cache_has_room_for_as_many_tokens_whatever_a_block_holds(words, blocks, capsys):
    asked = ("--requests", "20", "--rate", "20", "--policy", "round-robin", "--no-search", "--workers", "1", "--json")
    assert main(parsed(*asked, *words)) == 0
    assert json.loads(capsys.readouterr().out)["curves"][0]["blocks"] == blocks


def test_an_unknown_profile_is_told():
    with pytest.raises(OptionError, match="no profile is named 'h100'"):
        main(parsed(*SMALL, "--profile", "h100"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rate", "4,x"), "list of numbers"),
        (("--rate", "0"), "not a list of numbers above 0"),
        (("--limit", "p95"), "write ttft-p95=1"),
        (("--limit", "ttft-p42=1"), "write ttft-p95=1"),
        (("--limit", "ttft-p95=nan"), "write ttft-p95=1"),
    ],
)
def test_arguments_say_what_to_write(words, told):
    with pytest.raises(argparse.ArgumentError, match=told):
        parsed(*words)
