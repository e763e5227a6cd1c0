"""Beginnings of a log's prompts come from a trace of the same requests, and from no other trace."""

import json
from pathlib import Path

import pytest

from sim.engine_logs import LogError
from sim.engine_prompts import told
from sim.errors import SimError
from sim.replay import Sent

SENT = (Sent(0.0, 40, 3), Sent(1.0, 33, 2), Sent(2.0, 50, 9))
IDS = ([1, 2], [1, 3], [1, 2, 4])


def trace(tmp_path: Path, rows, size: int = 16) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": tokens, "output_length": 1, **({} if ids is None else {"hash_ids": ids})}
        for tokens, ids in rows
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def alike(one: Sent, other: Sent) -> int:
    """Blocks two prompts begin with alike."""
    return next(
        (place for place, (a, b) in enumerate(zip(one.begins, other.begins, strict=False)) if a != b),
        min(len(one.begins), len(other.begins)),
    )


def test_prompts_begin_alike_as_far_as_their_ids_do(tmp_path):
    found = told(SENT, trace(tmp_path, zip((40, 33, 50), IDS, strict=True)), 16, trace_block_tokens=16)
    assert [len(each.begins) for each in found] == [2, 2, 3]
    assert (alike(found[0], found[1]), alike(found[0], found[2]), alike(found[1], found[2])) == (1, 2, 1)
    assert [each.queued_s for each in found] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("block_tokens", "shared"), [(8, 4), (4, 8), (32, 1)])
def test_blocks_are_cut_or_joined_to_the_engines_size(tmp_path, block_tokens, shared):
    found = told(SENT, trace(tmp_path, zip((40, 33, 50), IDS, strict=True)), block_tokens, trace_block_tokens=16)
    assert alike(found[0], found[2]) == shared
    assert {len(key) for each in found for key in each.begins} == {16}


def test_a_partial_block_is_no_block(tmp_path):
    found = told(SENT[:1], trace(tmp_path, [(40, [1, 2, 3])]), 16, trace_block_tokens=16)
    assert len(found[0].begins) == 2


def test_requests_that_the_log_left_out_may_stand_between(tmp_path):
    rows = [(40, [1, 2]), (99, [7, 8, 9, 10, 11, 12]), (33, [1, 3]), (50, [1, 2, 4]), (16, [5])]
    found = told(SENT, trace(tmp_path, rows), 16, trace_block_tokens=16)
    assert alike(found[0], found[2]) == 2


@pytest.mark.parametrize(
    ("rows", "size", "said"),
    [
        ([(40, [1, 2]), (34, [1, 3])], 16, "after its row 1 there is none with the 33 prompt tokens of the log's req"),
        ([(40, None), (33, None), (50, None)], 16, "tells lengths only"),
        ([(40, [1, 2]), (33, [1, 3]), (50, [1, 2, 4])], 24, "choose a divisor or a multiple of 16"),
    ],
)
def test_another_trace_is_refused(tmp_path, rows, size, said):
    with pytest.raises((LogError, SimError), match=said):
        told(SENT, trace(tmp_path, rows), size, trace_block_tokens=16)
