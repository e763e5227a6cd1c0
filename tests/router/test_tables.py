"""What commands print."""

import json

import pytest

from router.check import Checked, Checkup
from router.config import load
from router.tables import print_check, print_config, print_explained

EXPLAINED = {
    "route": "/v1/chat/completions",
    "model": "tiny",
    "tokens": {"prompt": 100, "basis": "approximate", "reason": "text is hashed"},
    "blocks": {"count": 6, "block_tokens": 16},
    "user": "ann",
    "session": None,
    "replicas": [
        {
            "name": name,
            "matched_tokens": matched,
            "in_flight": 1,
            "pending_prefill_tokens": 0,
            "held_blocks": 9,
            "capacity_blocks": None,
            "weight": 1.0,
        }
        for name, matched in (("r1", 0), ("r2", 96))
    ],
    "costs": {"r1": 186.4, "r2": 10.0},
    "choice": {"replica": "r2", "reason": "prefix"},
}


def test_explained_marks_the_choice_and_says_why(capsys):
    assert print_explained(EXPLAINED, as_json=False) == 0
    told = capsys.readouterr().out
    assert "100 prompt tokens, approximate (text is hashed)" in told
    assert "→ r2" in told
    assert "186" in told
    assert "choice: r2, because prefix" in told
    assert "user: ann" in told
    assert "session" not in told


def test_explained_without_a_router_has_no_choice(capsys):
    told = {key: EXPLAINED[key] for key in ("route", "model", "tokens", "blocks")}
    assert print_explained(told, as_json=False) == 0
    assert "choice" not in capsys.readouterr().out


def test_explained_as_json_is_the_whole_of_it(capsys):
    assert print_explained(EXPLAINED, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == EXPLAINED


@pytest.mark.parametrize("as_json", [True, False])
def test_check_ends_with_1_when_something_is_wrong(capsys, as_json):
    fine = Checked("r1", "http://a:1", models=["tiny"], tokens="EXACT", tokens_reason="11 of 11")
    assert print_check(Checkup([fine], []), as_json=as_json) == 0
    assert print_check(Checkup([fine], ["replicas differ"]), as_json=as_json) == 1
    broken = Checked("r2", "http://b:1", problems=["refused the connection"], notes=["by the way"])
    assert print_check(Checkup([fine, broken], []), as_json=as_json) == 1
    assert "refused the connection" in capsys.readouterr().out


def test_config_shows_every_setting_with_its_origin(capsys):
    config, origins = load(sets=["drain_s=7"])
    assert print_config(config, origins, as_json=False) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["drain_s", "7.0", "--set"] in [row[:3] for row in rows]
    assert ["block_tokens", "16", "default"] in [row[:3] for row in rows]
