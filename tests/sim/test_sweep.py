"""The command of a sweep: what stands on stdout, in the CSV, and what is said of arguments it can't use."""

import argparse
import csv
import json

import pytest

from sim.errors import SimError
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


def test_an_unknown_profile_is_told():
    with pytest.raises(SimError, match="no profile is named 'h100'"):
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
