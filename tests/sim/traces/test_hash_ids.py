"""Mooncake and its relatives: lengths, units, what a session leaves out, and ids that are none."""

import json

import pytest

from sim.traces import TraceError, open_trace
from sim.traces.format import Reading
from sim.traces.hash_ids import Bailian, Dynamo, Mooncake
from sim.traces.rows import BadRow


def arrivals(path, rows, **options):
    file = path / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return list(open_trace(file, **options).arrivals)


def mooncake(timestamp, tokens, ids, **other):
    return {"timestamp": timestamp, "input_length": tokens, "output_length": 10, "hash_ids": ids, **other}


def test_milliseconds_unless_the_user_says_otherwise(tmp_path):
    rows = [mooncake(0.0, 20, [0]), mooncake(0.4, 20, [0])]
    assert arrivals(tmp_path, rows)[1].time_s == pytest.approx(0.0004)
    assert arrivals(tmp_path, rows, time_unit="s")[1].time_s == pytest.approx(0.4)


def test_a_partial_last_id_and_a_full_one(tmp_path):
    rows = [mooncake(0, 1025, [1, 2, 3]), mooncake(1, 1024, [1, 2]), mooncake(2, 1025, [1, 2])]
    keys = [one.keys for one in arrivals(tmp_path, rows)]
    assert [len(one) for one in keys] == [2, 2, 2]
    assert keys[0] == keys[1] == keys[2]


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3, 4]])
def test_another_number_of_ids_is_told_with_file_and_line(tmp_path, ids):
    with pytest.raises(TraceError, match=r"t\.jsonl, line 2: another number of block ids than the prompt has blocks"):
        arrivals(tmp_path, [mooncake(0, 20, [0]), mooncake(0, 1100, ids)])


def test_another_block_size_is_the_users_to_say(tmp_path):
    rows = [mooncake(0, 20, [0, 1]), mooncake(0, 33, [0, 2, 3])]
    assert [len(one.keys) for one in arrivals(tmp_path, rows, trace_block_tokens=16)] == [1, 2]
    with pytest.raises(TraceError, match="another number of block ids"):
        arrivals(tmp_path, rows)


def test_a_sessions_later_rows_may_hold_only_new_ids():
    read = Mooncake(Reading())
    first = next(iter(read(mooncake(0, 1100, [1, 2, 3], session_id="s"))))
    later = next(iter(read({"delay": 500, "input_length": 2100, "hash_ids": [8, 9, 10], "session_id": "s"})))
    other = next(iter(read(mooncake(0, 1024, [4, 5], session_id="t"))))
    assert first.runs == ((1, 3),)
    assert later.runs == ((1, 2), (8, 10))
    assert later.think_s == 0.5
    assert later.time_s is None
    assert other.runs == ((4, 5),)


@pytest.mark.parametrize("ids", [["a"], [1.5], "12", [None]])
def test_ids_that_are_none(ids):
    with pytest.raises(BadRow, match="hash_ids"):
        list(Mooncake(Reading())(mooncake(0, 20, ids)))


def test_neither_lengths_nor_text():
    with pytest.raises(BadRow, match="neither input_length nor"):
        list(Mooncake(Reading())({"timestamp": 0, "session_id": "s"}))


def test_one_id_after_several_prefixes_is_numbered_by_prefix(tmp_path):
    rows = [mooncake(0, 1024, [1, 9]), mooncake(1, 1024, [2, 9]), mooncake(2, 1024, [1, 9])]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    workload = open_trace(file)
    keys = [one.keys for one in workload.arrivals]
    assert keys[0] == keys[2]
    assert set(keys[0]).isdisjoint(keys[1])
    assert any("several prefixes" in note for note in workload.notes)


def test_ids_of_64_bits_are_kept_apart(tmp_path):
    big = 2**64 - 1
    rows = [mooncake(0, 1024, [big, big - 7]), mooncake(1, 1024, [big, 2**53]), mooncake(2, 1024, [-1, 2**53 + 1])]
    keys = [one.keys for one in arrivals(tmp_path, rows)]
    assert len({one[0] for one in keys}) == 1
    assert len({one[1] for one in keys}) == 3


def bailian(chat, parent, time_s):
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": time_s,
        "input_length": 16,
        "output_length": 1,
        "hash_ids": [1],
    }


def test_a_conversation_is_the_root_of_its_chain():
    read = Bailian(Reading())
    told = [
        next(iter(read(row))).session
        for row in (bailian(1, -1, 0), bailian(2, 1, 1), bailian(3, 2, 2), bailian(4, -1, 3))
    ]
    assert told == ["1", "1", "1", "4"]


def test_dynamo_ids_are_a_sessions_own_only_when_the_header_says_so():
    row = {"session_id": "x", "not_before_ms": 5, "input_length": 16, "output_length": 1, "hash_ids": [1]}
    for scope, wanted in (("local", "x"), ("global", "")):
        read = Dynamo(Reading())
        assert list(read({"schema": "dynamo.agentic_mooncake", "block_size": 16, "hash_id_scope": scope})) == []
        told = next(iter(read(row)))
        assert (told.scope, told.block_tokens, told.time_s) == (wanted, 16, 0.005)
