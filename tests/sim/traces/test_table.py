"""Columns of a trace: dense numbers, scopes apart, and rows that do not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.traces.rows import Ask, BadRow, Row
from sim.traces.runs import runs_of
from sim.traces.table import Builder
from sim.traces.texts import Texts


def builder(block_tokens=4, **options):
    return Builder(block_tokens=block_tokens, texts=Texts(None, 16), **options)


def row(ids, tokens=None, **other):
    return Row(0.0, len(ids) * 4 if tokens is None else tokens, 1, runs=runs_of(ids), **other)


PROMPTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1]), min_size=1, max_size=5)),
    max_size=8,
)


@given(PROMPTS)
def test_a_number_stands_for_one_prefix_of_one_scope(prompts):
    """Ids may be chained or not, near each other or not: equal numbers are equal prefixes, and only they."""
    made = builder()
    for scope, ids in prompts:
        made.add(row(ids, scope=scope))
    table = made.finished()
    paths = [(scope, tuple(ids[: end + 1])) for scope, ids in prompts for end in range(len(ids))]
    numbers = [number for place in range(len(table)) for number in table.numbers(place).tolist()]
    if table.was_chained:
        told = {(scope, ids[-1]) for scope, ids in paths}
        assert table.unique_blocks == len(set(numbers)) == len(told)
    else:
        assert table.unique_blocks == len(set(numbers)) == len(set(paths))
    same = dict(zip(numbers, paths, strict=True))
    assert all(same[number] == path for number, path in zip(numbers, paths, strict=True)) or not table.was_chained
    assert all(number < table.space for number in numbers)


def test_partial_blocks_are_told_apart():
    made = builder()
    for ids, tokens in (([1, 2], 8), ([1, 2, 3], 9), ([1, 2], 9), ([1], 8)):
        made.add(row(ids, tokens))
    table = made.finished()
    assert table.blocks.tolist() == [2, 2, 2, 1]
    assert table.partial.tolist() == [0, 1, 0, 0]
    assert [(tokens, len(blocks)) for tokens, blocks in table.prompts()] == [(8, 2), (9, 3), (9, 2), (8, 1)]


def test_a_row_that_does_not_fit_leaves_nothing_behind():
    made = builder()
    made.add(row([1, 2]))
    for bad in (row([1], 100), row([1, 2, 3], 4), row([1], 16, block_tokens=16), Row(0.0, None, 1)):
        with pytest.raises(BadRow):
            made.add(bad)
    assert len(made) == 1
    assert len(made.finished()) == 1


def test_ids_need_a_block_size():
    with pytest.raises(BadRow, match="without a block size"):
        builder(None).add(row([1]))


def test_what_is_unknown_stays_so():
    made = builder()
    made.add(Row(None, 5, 1))
    table = made.finished()
    assert not table.has_prefixes
    assert str(table.time_s[0]) == str(table.ttft_s[0]) == "nan"
    assert table.cached_tokens.tolist() == [-1]
    assert table.session.of(0) is None
    assert table.blocks.tolist() == [-1]
    assert list(table.prompts()) == []


def test_prompts_shorter_than_a_block_are_known_to_hit_nothing():
    made = builder(512)
    made.add(row([], 12))
    table = made.finished()
    assert table.has_prefixes
    assert list(table.prompts()) == [(12, [])]


def test_answers_are_one_token_at_least_and_assumed_up_to_a_limit():
    made = builder(assumed_output_tokens=100)
    made.add(Row(0.0, 5, 0))
    made.add(Row(0.0, 5, None))
    made.add(Row(0.0, None, None, ask=Ask("/v1/completions", {"prompt": "x", "max_tokens": 3})))
    assert made.finished().output_tokens.tolist() == [1, 100, 3]
    assert made.assumed_outputs == 2
