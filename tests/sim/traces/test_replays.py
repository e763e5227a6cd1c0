"""Times, pauses and keys of a trace's arrivals."""

import json

import pytest

from sim.errors import SimError
from sim.traces import open_trace
from sim.traces.replays import sizes


def trace(path, *rows, **options):
    file = path / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return open_trace(file, **options)


def row(timestamp, tokens, ids, output=10, **other):
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids, **other}


def times(workload):
    return [one.time_s for one in workload.arrivals]


def test_ties_keep_the_order_of_the_file(tmp_path):
    told = trace(tmp_path, row(6, 30, [1]), row(3, 10, [2]), row(3, 20, [3]), row(3, 15, [4]))
    assert [one.prompt_tokens for one in told.arrivals] == [10, 20, 15, 30]


def test_ticks_are_spread_up_to_the_next(tmp_path):
    rows = [row(time, 10, [1]) for time in (0, 0, 0, 3000, 9000, 9000)]
    assert times(trace(tmp_path, *rows)) == [0, 0, 0, 3, 9, 9]
    assert times(trace(tmp_path, *rows, spread_ticks=True)) == pytest.approx([0, 1, 2, 3, 9, 11.25])
    assert times(trace(tmp_path, *rows[:3], spread_ticks=True)) == [0, 0, 0]


def test_a_rate_stretches_the_times(tmp_path):
    rows = [row(time, 10, [1]) for time in (0, 1000, 4000)]
    workload = trace(tmp_path, *rows, rate=4.0)
    assert times(workload) == pytest.approx([0, 0.125, 0.5])
    assert any("4 requests a second" in note for note in workload.notes)


def test_without_times_they_are_drawn_and_said(tmp_path):
    rows = [{"prompt": f"say {number}"} for number in range(400)]
    workload = trace(tmp_path, *rows, rate=10.0, seed=3)
    assert times(workload)[-1] == pytest.approx(40, rel=0.2)
    assert times(workload) == times(trace(tmp_path, *rows, rate=10.0, seed=3))
    assert times(workload) != times(trace(tmp_path, *rows, rate=10.0, seed=4))
    assert any("no times" in note for note in workload.notes)


def test_a_later_turn_without_a_time_follows_its_answer_in_any_replay(tmp_path):
    rows = [
        row(0, 600, [1, 2], session_id="s"),
        {"delay": 500, "input_length": 700, "hash_ids": [1, 3], "session_id": "s"},
    ]
    for replay in ("timestamps", "think"):
        told = list(trace(tmp_path, *rows, row(5000, 10, [4]), replay=replay).arrivals)
        assert [(one.time_s, one.think_s) for one in told] == [(0.0, None), (0.5, 0.5), (5.0, None)]


def test_a_thinking_turn_comes_as_if_answers_took_no_time(tmp_path):
    rows = [row(time, 10, [1], session_id="s", delay=delay) for time, delay in ((0, 0), (60_000, 2000), (90_000, 500))]
    told = list(trace(tmp_path, *rows, row(1000, 10, [1], session_id="t"), replay="think").arrivals)
    assert [(one.session, one.time_s) for one in told] == [("s", 0.0), ("t", 1.0), ("s", 2.0), ("s", 2.5)]


def test_think_times_are_gaps_where_nothing_else_is_known(tmp_path):
    rows = [row(0, 512, [1]), row(4000, 1024, [1, 2])]
    assert [one.think_s for one in trace(tmp_path, *rows).arrivals] == [None, None]
    assert [one.think_s for one in trace(tmp_path, *rows, replay="think").arrivals] == [None, 4.0]


def test_an_answer_has_the_blocks_of_the_prompt_that_continues_it(tmp_path):
    rows = [row(0, 1100, [1, 2, 3], output=1000), row(9, 2600, [1, 2, 7, 8, 9, 10]), row(10, 2100, [1, 2, 7, 8, 11])]
    first, second, _ = (one.keys for one in trace(tmp_path, *rows).arrivals)
    assert len(first) == 4
    assert first == second[:4]
    first, second, _ = (one.keys for one in trace(tmp_path, *rows, cache_outputs=False).arrivals)
    assert first[:2] == second[:2]
    assert set(first[2:]).isdisjoint(second)


def test_answers_nobody_continues_are_their_own(tmp_path):
    first, second = (one.keys for one in trace(tmp_path, row(0, 512, [1], 1024), row(1, 512, [1], 1024)).arrivals)
    assert first[0] == second[0]
    assert set(first[1:]).isdisjoint(second[1:])


@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize("tokens", [16, 64, 512, 1024])
def test_blocks_are_cut_and_joined(tmp_path, tokens, outputs):
    rows = [row(0, 1300, [1, 2, 3], 400), row(5, 2600, [1, 2, 4, 5, 6, 7], 100), row(6, 1100, [1, 2, 8], 5)]
    workload = trace(tmp_path, *rows, block_tokens=tokens, cache_outputs=outputs)
    assert workload.block_tokens == tokens
    before = {}
    keys = []
    for one in workload.arrivals:
        assert len(one.keys) == (one.prompt_tokens + one.output_tokens) // tokens
        keys.append(one.keys)
        for place, key in enumerate(one.keys):
            assert before.setdefault(key, one.keys[:place]) == one.keys[:place]
    shared = 1024 // tokens
    assert keys[0][:shared] == keys[1][:shared] == keys[2][:shared]
    assert set(keys[0][shared:]).isdisjoint(keys[2][shared:])


def test_sizes_that_do_not_fit_are_told(tmp_path):
    assert sizes(512, 16) == (32, 1)
    assert sizes(16, 64) == (1, 4)
    with pytest.raises(SimError, match="choose a divisor or a multiple of 512"):
        trace(tmp_path, row(0, 10, [1]), block_tokens=24)
