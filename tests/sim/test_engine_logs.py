"""Logs of real engines in every form that is read, and what is said of those that can't be."""

import gzip
import json

import pytest

from sim.engine_logs import LogError, read_log
from sim.replay import Sent

SENT = (Sent(100.0, 30, 3), Sent(101.5, 40, 2))
ROWS = [
    {"arrival": 100.0, "prompt_tokens": 30, "output_tokens": 3, "ttft": 0.5, "e2e": 0.9},
    {"arrival": 101.5, "prompt_tokens": 40, "output_tokens": 2, "ttft": 0.25, "e2e": 0.5},
]
STAMPED = [
    dict(
        zip(
            ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts"),
            row,
            strict=True,
        )
    )
    for row in ((30, 3, 7.0, 100.0, 100.5, 100.9), (40, 2, 8.5, 101.5, 101.75, 102.0))
]
RESULT = {
    "start_times": [100.0, 101.5],
    "input_lens": [30, 40],
    "output_lens": [3, 2],
    "ttfts": [0.5, 0.25],
    "itls": [[0.2, 0.2], [0.25]],
}


def lines(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def table(rows):
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n"


@pytest.mark.parametrize(
    "text",
    [lines(ROWS), table(ROWS), lines(STAMPED), table(STAMPED), json.dumps(RESULT), json.dumps(RESULT, indent=1)],
    ids=["rows", "csv", "stamped rows", "stamped csv", "benchmark", "indented benchmark"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_is_read_alike(tmp_path, text, packed):
    path = tmp_path / ("log.gz" if packed else "log")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    log = read_log(path)
    assert log.sent == SENT
    assert log.took.ttft_s.tolist() == pytest.approx([0.5, 0.25])
    assert log.took.e2e_s.tolist() == pytest.approx([0.9, 0.5])
    assert log.took.tpot_s.tolist() == pytest.approx([0.2, 0.25])
    assert log.skipped == 0


def test_failed_requests_are_left_out_and_counted(tmp_path):
    failed = [{**ROWS[0], "output_tokens": 0}, {**ROWS[0], "ttft": None}, {**ROWS[0], "ttft": 2.0}]
    path = tmp_path / "log.jsonl"
    path.write_text(lines([*ROWS, *failed]))
    log = read_log(path)
    assert (log.sent, log.skipped) == (SENT, 3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the log is empty"),
        (lines(ROWS) + "{oops\n", ":3: this is no JSON object"),
        (lines([{"prompt_tokens": 3}]), "nothing tells the arrival, output, ttft, e2e of a request"),
        (json.dumps({**RESULT, "start_times": None}), "has no start_times; run a recent `vllm bench serve`"),
        (lines([{**ROWS[0], "output_tokens": 0}]), "none of its 1 requests"),
        ("arrival,prompt_tokens\n", "has no requests"),
    ],
)
def test_what_can_not_be_read_is_told(tmp_path, text, told):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(LogError) as raised:
        read_log(path)
    assert told in str(raised.value)
    assert str(path) in str(raised.value)
