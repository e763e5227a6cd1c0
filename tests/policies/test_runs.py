"""Comparing chained keys needs only the place where they part."""

from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import Chain, block_keys, packed
from policies.runs import Run, agreeing_blocks


def keys(head: int, tail: int, marker: int) -> tuple[bytes, ...]:
    """Keys of a prompt with `head` common blocks and `tail` of its own."""
    return block_keys(Chain.root("m"), packed([1] * head + [marker] * tail), 1)


lengths = st.integers(0, 20)


@given(lengths, lengths, lengths)
def test_prompts_agree_up_to_where_they_part(head: int, mine: int, theirs: int) -> None:
    one, other = keys(head, mine, 2), keys(head, theirs, 3)
    assert agreeing_blocks(one, other) == agreeing_blocks(other, one) == head
    assert agreeing_blocks(one, one[:head]) == head


@given(st.integers(1, 20), lengths, lengths, lengths)
def test_a_run_agrees_up_to_where_a_prompt_parts(head: int, mine: int, theirs: int, skipped: int) -> None:
    run = Run(b"".join(keys(head, mine, 2)), None, 0)
    prompt = tuple(b"?" * 16 for _ in range(skipped)) + keys(head, theirs, 3)
    assert run.common(prompt, skipped) == head


def test_a_run_knows_its_length_and_its_first_key() -> None:
    blocks = keys(5, 0, 2)
    run = Run(b"".join(blocks), None, 0)
    assert len(run) == 5
    assert run.first == blocks[0]
