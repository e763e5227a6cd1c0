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
    assert log.why.endswith(":3: output_tokens is 0: a request has one token at least")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the log is empty"),
        (lines(ROWS) + "{oops\n", ":3: this is no JSON object"),
        (lines([{"prompt_tokens": 3}]), "nothing tells the arrival, output, ttft, e2e of a request"),
        (json.dumps({**RESULT, "start_times": None}), "has no start_times; run a recent `vllm bench serve`"),
        (lines([{**ROWS[0], "output_tokens": 0}]), "none of 1 requests can be used"),
        (lines([{**ROWS[0], "output_tokens": 0}]), "log:1: output_tokens is 0"),
        (lines([{**ROWS[0], "ttft": -0.5}]), "log:1: by its ttft the first token came 0.5 s before the request"),
        (lines([{**ROWS[0], "e2e": 0.25}]), "log:1: by its e2e the last token came 0.25 s before the first"),
        (table([{**ROWS[0], "arrival": "Monday"}]), "log:2: arrival is 'Monday', which is no number"),
        ("a,b\n1,2\n", "it has a, b; it needs a column for the arrival"),
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


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [("log", b"\xff\xfe\x00", "this is no text"), ("log.gz", b"{}", "it can't be unpacked (Not a gzipped file")],
)
def test_what_is_no_text_is_told(tmp_path, name, data, told):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LogError) as raised:
        read_log(tmp_path / name)
    assert told in str(raised.value)


HEAD = {"schema": "prefix-router.trace", "version": 1, "block_tokens": 16, "started_s": 100.0}
RECORDED = [
    HEAD,
    {"t": 0, "prompt_tokens": 30, "output_tokens": 3, "status": 200, "replica": "r1", "ttft_s": 0.5, "e2e_s": 0.9},
    {"t": 1, "prompt_tokens": 99, "output_tokens": 3, "status": 200, "replica": "r2", "ttft_s": 0.5, "e2e_s": 0.9},
    {"t": 1, "prompt_tokens": 50, "status": 503, "replica": "r1", "e2e_s": 0.1},
    {"t": 1, "prompt_tokens": 50, "output_tokens": 1, "status": 200, "replica": "r1", "e2e_s": 0.1},
    {"t": 1.5, "prompt_tokens": 40, "output_tokens": 2, "status": 200, "replica": "r1", "ttft_s": 0.25, "e2e_s": 0.5},
]


def test_a_recording_is_a_log_of_each_of_its_replicas(tmp_path):
    path = tmp_path / "log"
    path.write_text(lines(RECORDED))
    log = read_log(path, replica="r1")
    assert (log.sent, log.rows, log.skipped) == (SENT, (0, 3), 2)
    assert log.took.e2e_s.tolist() == pytest.approx([0.9, 0.5])
    assert read_log(path, replica="r2").rows == (1,)


@pytest.mark.parametrize(
    ("rows", "replica", "told"),
    [
        (RECORDED, None, "it has requests of r1, r2; choose one with --replica"),
        (RECORDED, "r3", "no answered request of a replica 'r3'"),
        ([HEAD], None, "the recording has no answered request"),
        ([{**HEAD, "version": 9}], None, "log:1: a recording of another version"),
    ],
)
def test_what_a_recording_lacks_is_told(tmp_path, rows, replica, told):
    path = tmp_path / "log"
    path.write_text(lines(rows))
    with pytest.raises(LogError) as raised:
        read_log(path, replica=replica)
    assert told in str(raised.value)
