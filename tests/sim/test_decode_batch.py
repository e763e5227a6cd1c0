"""What a batch counts is what its sequences would give when asked one by one."""

from hypothesis import given
from hypothesis import strategies as st

from sim.decode_batch import DecodeBatch, Sequence
from sim.jobs import Job

BLOCK = 4


def joined(batch: DecodeBatch, order: int, computed: int, output: int) -> Sequence:
    sequence = Sequence(Job(order, computed, output + 1, ()), batch)
    sequence.computed, sequence.output, sequence.order = computed, 1, order
    batch.joined(sequence)
    return sequence


def moved(batch: DecodeBatch, steps: int) -> None:
    batch.begun += steps
    batch.passed(steps)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8), st.integers(0, 40))
def test_blocks_are_counted_ahead(members: list[tuple[int, int]], steps: int) -> None:
    batch = DecodeBatch(BLOCK)
    for order, (computed, _) in enumerate(members):
        joined(batch, order, computed, 100)
    want = sum(-(-(computed + steps) // BLOCK) - -(-computed // BLOCK) for computed, _ in members)
    assert batch.blocks_needed(steps) == want
    within = batch.steps_within(want)
    assert batch.blocks_needed(within) <= want < batch.blocks_needed(within + 1)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8))
def test_everybody_ends_in_its_step(members: list[tuple[int, int]]) -> None:
    batch = DecodeBatch(BLOCK)
    for order, (computed, output) in enumerate(members):
        joined(batch, order, computed, output)
    ended = []
    while batch.count:
        moved(batch, batch.steps_to_end())
        leaving = batch.ended()
        ended += [(batch.step, each.order, each.computed) for each in leaving]
    assert ended == sorted((output, order, computed + output) for order, (computed, output) in enumerate(members))
    assert batch.kv_tokens == 0


def test_who_left_and_came_back_ends_when_it_does_now() -> None:
    batch = DecodeBatch(BLOCK)
    sequence = joined(batch, 1, 10, 5)
    moved(batch, 2)
    batch.left(sequence)
    assert (sequence.computed, sequence.output) == (12, 3)
    moved(batch, 1)
    sequence.order = 2
    batch.joined(sequence)
    assert batch.steps_to_end() == 3
    moved(batch, 3)
    assert batch.ended() == [sequence]


def test_a_key_to_come_is_known_while_somebody_may_fill_it() -> None:
    batch = DecodeBatch(BLOCK)
    sequence = Sequence(Job(1, 5, 9, (b"a", b"b", b"c")), batch)
    sequence.computed = 5
    batch.joined(sequence)
    assert batch.fills_any((b"x", b"b"))
    assert not batch.fills_any((b"a", b"c"))
    batch.left(sequence)
    assert not batch.fills_any((b"b",))
