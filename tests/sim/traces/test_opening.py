"""Opening traces: bad rows with file, line and reason, limits, progress, and what is told of a trace."""

import json
import pickle
from pathlib import Path

import pytest

from sim.traces import TraceError, describe, open_trace

SAMPLES = Path(__file__).parent / "samples"
GOOD = {"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [1]}
WRONG = {
    "input_length is missing": {"timestamp": 0, "output_length": 3, "hash_ids": [1], "input_length": None},
    "input_length is negative": {**GOOD, "input_length": -5},
    "input_length is no whole number": {**GOOD, "input_length": 2.5},
    "timestamp is no number": {**GOOD, "timestamp": "noon"},
    "hash_ids is no list": {**GOOD, "hash_ids": 5},
}


def write(path, rows):
    file = path / "t.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return file


@pytest.mark.parametrize("reason", WRONG)
def test_a_bad_row_gives_file_line_and_reason(tmp_path, reason):
    file = write(tmp_path, [GOOD, GOOD, WRONG[reason], GOOD])
    with pytest.raises(TraceError) as caught:
        open_trace(file)
    assert str(caught.value) == f"{file}, line 3: {reason}; --skip-bad leaves such rows out"


def test_bad_rows_are_skipped_and_counted_by_reason(tmp_path):
    file = write(tmp_path, ["{oops", GOOD, *WRONG.values(), "[1]", WRONG["timestamp is no number"], GOOD])
    workload = open_trace(file, skip_bad=True)
    assert workload.requests == 2
    skipped = dict(describe(file, skip_bad=True).skipped)
    assert skipped == {**dict.fromkeys(WRONG, 1), "timestamp is no number": 2, "not JSON": 1, "no JSON object": 1}
    assert any(note.startswith("8 bad rows skipped: ") for note in workload.notes)


def test_a_session_with_a_bad_request_is_skipped_whole(tmp_path):
    good = {"t": 0, "in": 64, "out": 1, "hash_ids": [1]}
    session = {"id": "a", "block_size": 64, "requests": [good, {"t": 1}]}
    file = write(tmp_path, [session, {**session, "id": "b", "requests": [good]}])
    assert [one.session for one in open_trace(file, skip_bad=True).arrivals] == ["b"]


def test_a_trace_of_no_known_format_says_what_is_known(tmp_path):
    with pytest.raises(
        TraceError, match=r"line 1: a row with answer, question is of no known trace format; known are aiperf, azure"
    ):
        open_trace(write(tmp_path, [{"question": 1, "answer": 2}]))


@pytest.mark.parametrize("rows", [[], ["", ""], ["{oops"]])
def test_nothing_to_read_is_told(tmp_path, rows):
    with pytest.raises(TraceError, match="no row of it can be read"):
        open_trace(write(tmp_path, rows), skip_bad=True)


def test_wrong_options_are_told():
    with pytest.raises(TraceError, match="'hours' is no unit of time"):
        open_trace(SAMPLES / "mooncake.jsonl", time_unit="hours")
    with pytest.raises(TraceError, match="'fast' is no way to replay"):
        open_trace(SAMPLES / "mooncake.jsonl", replay="fast")


def test_reading_stops_after_so_many_requests(tmp_path):
    file = write(tmp_path, [GOOD] * 5 + ["{oops"])
    workload = open_trace(file, requests=5)
    assert (workload.requests, len(list(workload.arrivals))) == (5, 5)


def test_progress_is_told():
    told = []
    open_trace(SAMPLES / "mooncake.jsonl.gz", progress=lambda done, size: told.append((done, size)))
    assert told[-1] == ((SAMPLES / "mooncake.jsonl.gz").stat().st_size,) * 2


def test_a_workload_can_be_sent_to_another_process():
    workload = open_trace(SAMPLES / "bailian.jsonl")
    assert list(pickle.loads(pickle.dumps(workload)).arrivals) == list(workload.arrivals)  # noqa: S301 -- our own


def test_a_description_in_numbers():
    told = describe(SAMPLES / "mooncake.jsonl")
    assert (told.format, told.requests, told.times.duration_s, told.times.requests_per_s) == ("mooncake", 3, 3.0, 1.0)
    assert told.prefixes.ideal_hit_fraction == 1536 / 3236  # 512 of the second prompt, 1,024 of the third
    assert told.notes == ("sessions are inferred from prompts that continue each other",)


def test_what_is_assumed_is_a_note():
    told = describe(SAMPLES / "vllm_custom.jsonl").notes
    assert any("4 bytes a token" in note for note in told)
    assert any("answers of 1 requests have no length" in note for note in told)


def places(value, depth=0):
    """Ways to every member of a row."""
    found = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for name, held in found:
        yield (name,)
        yield from ((name, *further) for further in places(held, depth + 1))


def spoilt(row, way, junk):
    copy = json.loads(json.dumps(row))
    held = copy
    for name in way[:-1]:
        held = held[name]
    held[way[-1]] = junk
    return copy


@pytest.mark.parametrize("sample", [path.name for path in sorted(SAMPLES.glob("*.json*")) if path.suffix != ".gz"])
def test_whatever_a_member_is_it_is_read_or_told(tmp_path, sample):
    """No row, however spoilt, ends in anything but requests or an error that says where and why."""
    text = (SAMPLES / sample).read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()] if sample.endswith("l") else [{"data": json.loads(text)}]
    if not isinstance(rows[0].get("data"), list):
        rows[0] = rows[0].get("data", rows[0])
    read, told = 0, []
    for way in places(rows[0]):
        for junk in (None, -1, "x", [5], {"a": [1.5]}):
            try:
                read += len(list(open_trace(write(tmp_path, [spoilt(rows[0], way, junk), *rows[1:]])).arrivals))
            except TraceError as error:
                told.append(str(error))
    assert read
    assert told
    assert all("t.jsonl" in message for message in told)
