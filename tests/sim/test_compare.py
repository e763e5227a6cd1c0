"""Comparisons are paired: every policy and every bound meets the same arrivals."""

import pytest

from sim.bounds import INFINITE_CACHE, NO_CACHE, ORACLE
from sim.compare import compare, lesson_rows
from sim.run import Setup
from tests.sim.loads import chats

SETUP = Setup(replicas=3, blocks=400)
POLICIES = ("round-robin", "prefix-aware")


def test_bounds_come_first_and_every_row_has_the_same_requests():
    found = compare(lambda _: chats(), POLICIES, SETUP)
    assert [row.policy for row in found.bounds] == [NO_CACHE, INFINITE_CACHE, ORACLE]
    assert [row.policy for row in found.rows] == list(POLICIES)
    assert {row.mean.prompt_tokens for row in (*found.bounds, *found.rows)} == {found.rows[0].mean.prompt_tokens}
    assert {row.mean.requests for row in (*found.bounds, *found.rows)} == {60}


def test_no_policy_beats_one_infinite_cache():
    found = compare(lambda seed: chats(150, seed), (*POLICIES, "user-hash"), SETUP, seeds=(1, 2))
    everything = found.bounds[1]
    for row in (found.bounds[2], *found.rows):
        for bound, one in zip(everything.results, row.results, strict=True):
            assert one.hit_rate <= bound.hit_rate


def test_bounds_can_be_left_out():
    assert compare(lambda _: chats(), POLICIES, SETUP, with_bounds=False).bounds == ()


def test_several_seeds_have_a_spread():
    found = compare(lambda seed: chats(seed=seed), POLICIES, SETUP, seeds=(1, 2, 3))
    row = found.rows[0]
    rates = [one.hit_rate for one in row.results]
    assert len(set(rates)) == 3
    assert row.spread["hit_rate"] == (min(rates), max(rates))
    assert row.mean.hit_rate == pytest.approx(sum(rates) / 3)
    low, high = row.spread["ttft_s.p99"]
    assert low <= row.mean.ttft_s.p99 <= high


def test_two_comparisons_are_equal():
    first, second = (compare(lambda _: chats(), POLICIES, SETUP) for _ in range(2))
    assert first == second


def test_lengths_only_are_said_to_be():
    found = compare(lambda _: chats(has_prefixes=False, notes=("lengths only: no prefix analysis",)), POLICIES, SETUP)
    assert found.bounds == ()
    assert found.notes.count("lengths only: no prefix analysis") == 1
    assert [row.mean.hit_rate for row in found.rows] == [None, None]


def test_a_profile_that_nobody_calibrated_is_said_to_be():
    notes = compare(lambda _: chats(), POLICIES, SETUP).notes
    assert any("is not calibrated" in note for note in notes)


def test_requests_too_long_for_any_replica_are_said():
    found = compare(lambda _: chats(), ("round-robin",), Setup(replicas=2, blocks=40))
    refused = found.rows[0].mean.refused
    assert refused > 0
    assert any(note.startswith(f"{refused} requests are longer") for note in found.notes)


def test_progress_names_what_runs():
    told = []
    compare(lambda _: chats(), POLICIES, SETUP, told=lambda *words: told.append(words))
    assert told == [(ORACLE, 1, 60), ("round-robin", 1, 60), ("prefix-aware", 1, 60)]


def test_no_seeds_are_refused():
    with pytest.raises(ValueError, match="a seed"):
        compare(lambda _: chats(), POLICIES, SETUP, seeds=())


def test_the_lesson_has_ten_rows_to_the_token():
    rows = lesson_rows()
    assert [row.computed_tokens for row in rows] == [
        2_581_118, 187_102, 831_582, 1_083_470, 2_583_518, 1_123_214, 572_238, 211_774, 879_390, 198_702,
    ]  # fmt: skip
    assert {row.prompt_tokens for row in rows} == {2_581_118, 2_583_518}
