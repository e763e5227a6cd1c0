"""The lesson's table, to the token, and arrivals that follow from their seed."""

import itertools

import pytest

from policies.blocks import Chain
from sim.workload import LESSON, LruStore, Turn, arrivals, lesson_turns, scored

PLAIN, STAMPED = 2_581_118, 2_583_518
TABLE = [
    (PLAIN, PLAIN, 0.0),
    (PLAIN, 187_102, 92.8),
    (PLAIN, 831_582, 67.8),
    (PLAIN, 1_083_470, 58.0),
    (STAMPED, STAMPED, 0.0),
    (PLAIN, 1_123_214, 56.5),
    (STAMPED, 572_238, 77.9),
    (PLAIN, 211_774, 91.8),
    (PLAIN, 879_390, 65.9),
    (PLAIN, 198_702, 92.3),
]


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return lesson_turns()


@pytest.mark.parametrize("row", range(len(TABLE)), ids=lambda row: LESSON[row].name)
def test_the_table_of_the_lesson(turns: list[Turn], row: int) -> None:
    score = scored(LESSON[row], turns)
    total, computed, percent = TABLE[row]
    assert (score.total_tokens, score.computed_tokens) == (total, computed)
    assert round(score.hit_fraction * 100, 1) == percent


def test_every_row_is_checked() -> None:
    assert len(LESSON) == len(TABLE)


def test_a_changed_first_token_is_computed_whole() -> None:
    store, root = LruStore(100), Chain.root("m")
    prompts = [list(range(12)) for _ in range(4)]
    prompts[2][0] = 99
    computed = [12 - store.served(root, prompt, [], 4) for prompt in prompts]
    assert computed == [12, 4, 12, 4]
    assert sum(computed) == 32


def test_a_turn_begins_with_the_one_before(turns: list[Turn]) -> None:
    mine = [turn for turn in turns if turn.user == 7]
    assert len(mine) == 6
    for before, after in itertools.pairwise(mine):
        history = before.prompt_ids + before.answer_ids
        assert after.prompt_ids[: len(history)] == history
        assert len(after.prompt_ids) == len(history) + after.message_tokens
        assert before.time_s < after.time_s


def test_another_seed_is_another_lesson() -> None:
    assert lesson_turns(2)[0] != lesson_turns(1)[0]
    assert lesson_turns(2)[0] == lesson_turns(2)[0]


def test_arrivals_keep_their_rate() -> None:
    times = list(itertools.islice(arrivals(20.0, 3), 4000))
    assert times == sorted(times)
    assert times == list(itertools.islice(arrivals(20.0, 3), 4000))
    assert 4000 / times[-1] == pytest.approx(20.0, rel=0.05)


def test_a_rate_is_positive() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        next(arrivals(0.0, 1))
