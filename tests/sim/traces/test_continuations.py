"""Who continues whom, and what answers were."""

import numpy as np

from sim.traces.continuations import continuations
from sim.traces.rows import Row
from sim.traces.runs import runs_of
from sim.traces.table import Builder
from sim.traces.texts import Texts


def table_of(*prompts):
    made = Builder(block_tokens=4, texts=Texts(None, 4))
    for tokens, ids in prompts:
        made.add(Row(0.0, tokens, 5, runs=runs_of(ids)))
    return made.finished()


def found(*prompts, order=None):
    table = table_of(*prompts)
    return continuations(table, np.arange(len(table)) if order is None else np.array(order))


def test_the_longest_and_latest_is_continued():
    told = found((8, [1, 2]), (8, [1, 2]), (12, [1, 2, 3]), (20, [1, 2, 3, 4, 5]), (12, [1, 2, 9]))
    assert told.before.tolist() == [-1, 0, 1, 2, 1]
    assert told.answered_by.tolist() == [-1, 2, 3, -1, -1]
    assert told.sessions().codes.tolist() == [0, 0, 0, 0, 0]


def test_half_a_prompt_is_not_continued():
    told = found((12, [1, 2, 3]), (12, [1, 2, 4]), (4, [1]), (5, [1, 7]))
    assert told.before.tolist() == [-1, -1, -1, 2]
    assert len(told.sessions().names) == 3


def test_a_block_that_is_not_full_continues_nothing():
    told = found((9, [1, 2, 3]), (13, [1, 2, 5, 6]), (3, [3]))
    assert told.before.tolist() == [-1, 0, -1]


def test_a_head_that_many_share_makes_no_session():
    told = found((4, [1]), *((8, [1, number]) for number in range(2, 203)))
    assert set(told.before.tolist()) == {-1}
    few = found((4, [1]), *((8, [1, number]) for number in range(2, 22)))
    assert few.before.tolist() == [-1] + [0] * 20


def test_it_is_time_that_orders_turns():
    told = found((12, [1, 2, 3]), (16, [1, 2, 3, 4]), (8, [1, 2]), order=[2, 0, 1])
    assert told.before.tolist() == [2, 0, -1]
    assert told.sessions().codes.tolist() == [0, 0, 0]
