"""Numbers of batches: in order, missing, repeated, of a new process; against a list of everything that was sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv_sequence import Sequence, Turn


def taken(*numbers: int) -> Sequence:
    sequence = Sequence()
    for number in numbers:
        sequence.took(number, b"batch %d" % number)
    return sequence


def test_batches_in_order():
    sequence = Sequence()
    for number in range(3):
        assert sequence.turn(number, b"batch %d" % number) is Turn.NEXT
        sequence.took(number, b"batch %d" % number)
    assert (sequence.last, sequence.next) == (2, 3)


def test_a_gap_is_ahead_until_it_is_given_up():
    sequence = taken(0)
    assert sequence.turn(5, b"batch 5") is Turn.AHEAD
    sequence.took(5, b"batch 5")
    assert sequence.next == 6
    assert sequence.turn(3, b"batch 3") is Turn.SEEN, "too late: what batch 5 removed must not come back"


def test_the_first_one_may_have_any_number():
    sequence = taken(812)
    assert sequence.turn(813, b"batch 813") is Turn.NEXT
    assert sequence.turn(0, b"another") is Turn.RESTARTED


@pytest.mark.parametrize("number", [0, 7, 9])
def test_the_same_batch_again_is_no_restart(number):
    sequence = taken(*range(10))
    assert sequence.turn(number, b"batch %d" % number) is Turn.SEEN
    assert sequence.turn(number, b"of another process") is Turn.RESTARTED


def test_a_number_from_long_ago_is_of_a_new_process():
    sequence = taken(*range(40_000))
    assert sequence.turn(0, b"batch 0") is Turn.RESTARTED
    assert sequence.turn(39_000, b"batch 39000") is Turn.SEEN


def test_a_new_process_counts_from_0():
    sequence = taken(*range(10))
    sequence.restarted()
    assert sequence.last is None
    assert sequence.turn(0, b"batch 0") is Turn.NEXT


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), max_size=60))
def test_taken_numbers_only_grow_within_one_process(arrivals):
    sequence, numbers = Sequence(), []
    for number, process in arrivals:
        payload = b"%d of %d" % (number, process)
        turn = sequence.turn(number, payload)
        if turn is Turn.RESTARTED:
            sequence.restarted()
            numbers = []
        elif turn is Turn.SEEN:
            assert number < numbers[-1] + 1
            continue
        assert (turn is Turn.NEXT) == (number == (numbers[-1] + 1 if numbers else 0)) or turn is Turn.RESTARTED
        sequence.took(number, payload)
        numbers.append(number)
        assert numbers == sorted(set(numbers))
        assert (sequence.last, sequence.next) == (number, number + 1)
