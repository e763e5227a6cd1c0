"""The tree splits, grows in place and tidies itself; what its holders may rely on is tested in test_index.py."""

from policies.blocks import Chain, block_keys, packed
from policies.index import PrefixIndex
from policies.tree import Holder, Tree


def keys(*numbers: int) -> tuple[bytes, ...]:
    return block_keys(Chain.root("m"), packed(numbers), 1)


def grown(tree: Tree, holder: Holder, blocks: tuple[bytes, ...]) -> list[int]:
    """Let a holder take a whole prompt, youngest; return the lengths of the runs along it."""
    path, covered = tree.path(blocks)
    if covered < len(blocks):
        path = tree.grown(holder, path, covered, blocks)
    for run, depth in reversed(path):
        holder.held_blocks += max(0, depth - holder.depths.get(run, 0))
        holder.depths[run] = max(depth, holder.depths.get(run, 0))
        holder.depths.move_to_end(run)
        run.holders |= holder.bit
    return [len(run) for run, _ in path]


def test_a_leaf_that_one_replica_knows_grows_in_place() -> None:
    tree = Tree()
    holder = tree.joined("r1", None)
    assert grown(tree, holder, keys(1, 2)) == [2]
    assert grown(tree, holder, keys(1, 2, 3, 4)) == [4]


def test_a_leaf_that_two_replicas_know_does_not() -> None:
    tree = Tree()
    one, two = tree.joined("r1", None), tree.joined("r2", None)
    grown(tree, one, keys(1, 2))
    grown(tree, two, keys(1, 2))
    assert grown(tree, two, keys(1, 2, 3)) == [2, 1]
    assert [depth for _, depth in tree.path(keys(1, 2, 3, 9))[0]] == [2, 1]


def test_a_prompt_that_parts_splits_a_run() -> None:
    tree = Tree()
    holder = tree.joined("r1", None)
    grown(tree, holder, keys(1, 2, 3, 4))
    assert grown(tree, holder, keys(1, 2, 9)) == [2, 1]
    path, known = tree.path(keys(1, 2, 3, 4))
    assert [len(run) for run, _ in path] == [2, 2]
    assert known == 4
    assert path[0][0].branches == 2
    assert holder.holds_beyond(path[0][0])
    assert not holder.holds_beyond(path[1][0])


def test_a_run_shrinks_to_its_longest_holder_and_goes_with_the_last() -> None:
    tree = Tree()
    one, two = tree.joined("r1", None), tree.joined("r2", None)
    grown(tree, one, keys(1, 2, 3, 4))
    grown(tree, two, keys(1, 2, 3))
    tree.evict(one, 1)
    assert [len(run) for run in tree.by_first.values()] == [3]
    tree.left(two)
    assert [len(run) for run in tree.by_first.values()] == [1]
    tree.cleared(one)
    assert not tree.by_first
    assert list(tree.by_bit.values()) == [one]


def test_eviction_order_survives_a_split() -> None:
    """The split head is young, but no younger than its own ancestors."""
    index = PrefixIndex()
    index.joined("r1", 12)
    index.recorded("r1", keys(1, 1, 2, 2, 2, 2))
    index.recorded("r1", keys(1, 1, 2, 3))
    index.recorded("r1", keys(7, 7, 7))
    index.recorded("r1", keys(1, 1, 2, 2, 4))
    assert index.held_blocks("r1") == 11
    index.resized("r1", 7)
    assert index.matched(keys(1, 1, 2, 2, 4)) == {"r1": 5}
