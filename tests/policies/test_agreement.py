"""Comparing chained keys needs only the place where they part."""

from hypothesis import given
from hypothesis import strategies as st

from policies.agreement import agreeing_blocks, common_blocks
from policies.blocks import Chain, block_keys, packed


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
    run = b"".join(keys(head, mine, 2))
    prompt = tuple(b"?" * 16 for _ in range(skipped)) + keys(head, theirs, 3)
    assert common_blocks(run, prompt, skipped) == head
