"""Blocks of unfinished prompts: shared heads count once, the oldest end first."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.active import SPAN_BLOCKS, ActiveBlocks, Footprint
from policies.conformance import sample_request
from policies.types import Request


def prompt(blocks: int, number: int = 0) -> Request:
    return replace(sample_request(number, blocks=blocks), prompt_tokens=16 * blocks)


def branch(head: Request, blocks: int, number: int) -> Request:
    """A prompt that goes on from `head` with blocks of its own."""
    total = len(head.blocks) + blocks
    return replace(head, blocks=head.blocks + prompt(blocks, number).blocks, prompt_tokens=16 * total)


def test_prompts_without_a_common_head_add_up() -> None:
    active = ActiveBlocks()
    for number, blocks in enumerate([3, 40, 100]):
        footprint = Footprint.of(prompt(blocks, number))
        assert active.with_prompt(footprint) == active.blocks + blocks
        active.sent(footprint)
    assert active.blocks == 143


def test_a_common_head_counts_once() -> None:
    head, active = prompt(3 * SPAN_BLOCKS), ActiveBlocks()
    active.sent(Footprint.of(branch(head, 5, 1)))
    other = Footprint.of(branch(head, 7, 2))
    assert active.with_prompt(other) == 3 * SPAN_BLOCKS + 5 + 7
    active.sent(other)
    assert active.blocks == 3 * SPAN_BLOCKS + 5 + 7
    active.keep(1)
    assert active.blocks == 3 * SPAN_BLOCKS + 7, "the first ended, the head is still in use"
    active.keep(0)
    assert active.blocks == 0


def test_a_partly_filled_block_is_a_block() -> None:
    assert Footprint.of(replace(prompt(3), prompt_tokens=16 * 3 + 1)).blocks == 4
    assert Footprint.of(replace(prompt(0), prompt_tokens=0)).blocks == 0


def test_a_prompt_without_blocks_counts_by_its_length() -> None:
    active = ActiveBlocks()
    active.sent(Footprint.of(replace(prompt(0), prompt_tokens=160)))
    assert active.blocks == 10


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 40), st.integers(0, 6)), max_size=30))
def test_it_equals_the_union_of_spans(acts: list[tuple[int, int, int, int]]) -> None:
    """Against a twin that keeps every prompt and unites sets."""
    active, sent = ActiveBlocks(), list[Footprint]()
    for head, number, own, in_flight in acts:
        footprint = Footprint.of(branch(prompt(SPAN_BLOCKS * head), own, 10 + 10 * head + number))
        active.keep(in_flight)
        sent = sent[max(0, len(sent) - in_flight) :]
        after = [*sent, footprint]
        union = SPAN_BLOCKS * len({span for one in after for span in one.spans}) + sum(one.apart for one in after)
        assert active.with_prompt(footprint) == union
        active.sent(footprint)
        sent = after
        assert active.blocks == union
