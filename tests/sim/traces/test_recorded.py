"""The router's own recording: heads, references to earlier rows, and rows that are wrong."""

import base64
from pathlib import Path

import pytest

from sim.traces import open_trace
from sim.traces.format import Reading
from sim.traces.recorded import Recorded
from sim.traces.rows import BadRow, LeftOut

SAMPLE = Path(__file__).parent / "samples" / "router.jsonl"
HEAD = {"schema": "prefix-router.trace", "version": 1, "block_tokens": 16, "started_s": 100.0}


def row(tokens=40, **other):
    return {"t": 1.0, "route": "/v1/completions", "prompt_tokens": tokens, "status": 200, **other}


def ids(*words):
    return base64.b64encode(b"".join(word.to_bytes(8, "little") for word in words)).decode()


def reader():
    read = Recorded(Reading())
    assert list(read(HEAD)) == []
    return read


def test_the_sample_is_in_order_with_its_hits():
    told = list(open_trace(SAMPLE).arrivals)
    assert [one.time_s for one in told] == [0.0, 1.0, 3.0]  # written in the order of their ends
    assert [one.cached_tokens for one in told] == [None, 0, 32]
    assert told[0].keys[0] == told[1].keys[0]
    assert told[1].keys[:2] == told[2].keys[:2]
    assert [one.output_tokens for one in told] == [1, 9, 9]  # an embedding has no answer
    assert told[1].tenant == "T1"


def test_after_refers_to_a_row_since_the_head():
    read = reader()
    first = next(iter(read(row(ids=ids(7, 8)))))
    later = next(iter(read(row(100, after=[0, 2], ids=ids(9)))))
    branch = next(iter(read(row(after=[1, 1], ids=ids(9)))))
    assert first.runs == ((0, 1),)
    assert later.runs == ((0, 2),)
    assert branch.runs == ((0, 0), (2, 2))
    assert first.scope == later.scope


def test_a_new_head_is_another_scope():
    read = reader()
    first = next(iter(read(row(ids=ids(7)))))
    assert list(read({**HEAD, "started_s": 500.0})) == []
    later = next(iter(read(row(ids=ids(7)))))
    assert (later.scope != first.scope, later.time_s) == (True, 501.0)
    with pytest.raises(BadRow, match="not there"):
        list(read(row(after=[1, 1])))


def test_a_refused_request_still_counts_as_a_row():
    read = reader()
    with pytest.raises(LeftOut, match="failed"):
        list(read(row(status=503, ids=ids(1))))
    assert next(iter(read(row(after=[0, 1], ids=ids(2))))).runs == ((0, 1),)


def test_blocks_beyond_the_engines_count_are_cut():
    assert next(iter(reader()(row(20, ids=ids(1, 2, 3))))).runs == ((0, 0),)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"after": [5, 1]}, "not there"),
        ({"after": [0, 9]}, "not there"),
        ({"after": [0]}, r"no \[place, blocks\]"),
        ({"after": [0, -1]}, r"no \[place, blocks\]"),
        ({"ids": "AAAA"}, "no base64 of 8 bytes"),
        ({"ids": "*"}, "no base64"),
        ({"ids": 5}, "no base64"),
    ],
)
def test_a_wrong_row_is_told(told, reason):
    read = reader()
    next(iter(read(row(ids=ids(1, 2)))))
    with pytest.raises(BadRow, match=reason):
        list(read(row(**told)))


def test_heads_are_needed_and_of_a_version_that_is_known():
    with pytest.raises(BadRow, match="before the head"):
        list(Recorded(Reading())(row()))
    with pytest.raises(BadRow, match="another version"):
        list(Recorded(Reading())({**HEAD, "version": 2}))
