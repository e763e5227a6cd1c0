"""A calibration's numbers stand beside what makes them doubtful."""

import io
import json
from dataclasses import replace

import pytest

from sim.report_calibration import Calibration, Error, Knobs, printed, written

FOUND = Calibration(
    profile="p",
    requests=300,
    skipped=2,
    why="",
    held_out=0,
    prompt_tokens=20_000,
    cached_tokens=4_000,
    preemptions=7,
    before=Knobs(0.002, 20e-6, 0.0156),
    after=Knobs(0.0031, 41e-6, 0.02),
    replays=60,
    errors=(Error("ttft", "p95", 2.5, -0.3, -0.1, 0.014), Error("tpot", "mean", 0.0312, -0.2, -0.05, -0.02)),
)


def test_the_table_has_what_was_fitted_and_all_errors(capsys):
    printed(FOUND)
    out = capsys.readouterr().out
    for told in ("300 requests, 2 left out", "4,000 of 20,000", "preemptions: 7", "3.10 ms", "41.0 us", "20.0 ms"):
        assert told in out
    for told in ("2.50 s", "31.2 ms", "-30.0%", "-10.0%", "+1.4%", "worst error 2.0%"):
        assert told in out
    assert "note:" not in out
    assert "compute" not in out


def test_a_factor_on_compute_stands_with_the_knobs_when_it_was_fitted(capsys):
    printed(replace(FOUND, after=replace(FOUND.after, compute_factor=1.49)))
    assert "1.49" in capsys.readouterr().out


def test_json_is_one_object_with_the_worst_error():
    out = io.StringIO()
    written(FOUND, out)
    told = json.loads(out.getvalue())
    assert told["worst"] == 0.02
    assert told["errors"][0] == {
        "quantity": "ttft",
        "point": "p95",
        "real_s": 2.5,
        "kernels": -0.3,
        "before": -0.1,
        "after": 0.014,
    }
    assert told["notes"] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cached_tokens": None}, "--prompts TRACE tells how they begin"),
        ({"why": "log.csv:7: ttft is 'x', which is no number"}, "the first: log.csv:7: ttft is 'x'"),
        ({"requests": 12}, "only 12 of the log's requests"),
        ({"errors": FOUND.errors[:1]}, "no answer has a second token"),
        ({"after": Knobs(13.0, 0.0, 0.0)}, "are the log's times seconds?"),
        ({"errors": (replace(FOUND.errors[1], after=0.4),)}, "40% off: give the server's own --blocks"),
    ],
)
def test_what_makes_it_doubtful_is_said(change, said, capsys):
    found = replace(FOUND, **change)
    assert len(found.notes) == 1
    assert said in found.notes[0]
    printed(found)
    assert said in capsys.readouterr().out.replace("\n", " ")
