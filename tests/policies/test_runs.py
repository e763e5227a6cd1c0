"""A run is packed keys."""

from policies.blocks import Chain, block_keys, packed
from policies.runs import Run


def test_a_run_knows_its_length_and_its_first_key() -> None:
    blocks = block_keys(Chain.root("m"), packed([1] * 5), 1)
    run = Run(b"".join(blocks), None, 0)
    assert len(run) == 5
    assert run.first == blocks[0]


def test_runs_are_told_apart_by_what_they_are_and_not_by_what_they_hold() -> None:
    one, other = Run(b"k" * 16, None, 0), Run(b"k" * 16, None, 0)
    assert one != other
    assert len({one, other}) == 2
