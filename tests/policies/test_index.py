"""The index holds, per replica, whole heads of prompts, the most recently used ones, and nothing else."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.blocks import Chain, block_keys, packed
from policies.errors import FleetError
from policies.index import SHARED_AFTER, PrefixIndex

paths = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def keys(path: Sequence[int]) -> tuple[bytes, ...]:
    """One block per number."""
    return block_keys(Chain.root("m"), packed(path), 1)


def heads(path: Sequence[int]) -> set[tuple[int, ...]]:
    return {tuple(path[:depth]) for depth in range(1, len(path) + 1)}


def unique(prompt: int, blocks: int) -> tuple[bytes, ...]:
    return keys([1000 + prompt, *range(blocks - 1)])


def index_of(*names: str, capacity_blocks: int | None = None) -> PrefixIndex:
    index = PrefixIndex()
    for name in names:
        index.joined(name, capacity_blocks)
    return index


def assert_sound(index: PrefixIndex) -> None:
    """What must hold of the tree after any history."""
    tree = index._tree
    children = dict.fromkeys(tree.by_first.values(), 0)
    for first, run in tree.by_first.items():
        assert run.first == first
        assert max(holder.depths[run] for holder in tree.holders(run.holders)) == len(run), "keys nobody holds"
        if run.parent is not None:
            assert tree.by_first[run.parent.first] is run.parent, "unreachable"
            children[run.parent] += 1
    assert children == {run: run.branches for run in children}
    for holder in index._holders.values():
        place = {run: position for position, run in enumerate(holder.depths)}
        assert holder.held_blocks == sum(holder.depths.values())
        assert all(computed < holder.depths[run] for run, computed in holder.expected.items())
        for run, depth in holder.depths.items():
            assert run.holders & holder.bit
            assert 0 < depth <= len(run)
            if run.parent is not None:
                assert holder.depths[run.parent] == len(run.parent), "not a contiguous head"
                assert place[run.parent] > place[run], "the head would go before its tail"
                assert run.parent not in holder.expected or holder.expected.get(run, -1) == 0, "computed after hoped"


class Histories(RuleBasedStateMachine):
    """The index against sets of prefixes, one per replica."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(unknown_capacity_blocks=30)
        self.held: dict[str, set[tuple[int, ...]]] = {}
        self.hoped: dict[str, set[tuple[int, ...]]] = {}
        self.capacity: dict[str, int | None] = {}

    names = st.sampled_from(["r0", "r1", "r2", "r3"])
    capacities = st.sampled_from([None, 0, 3, 7, 20])

    @rule(name=names, capacity=capacities)
    def join_or_leave(self, name: str, capacity: int | None) -> None:
        if name in self.held:
            self.index.left(name)
            del self.held[name]
        else:
            self.index.joined(name, capacity)
            self.held[name], self.hoped[name] = set(), set()
            self.capacity[name] = capacity

    @precondition(lambda self: self.held)
    @rule(name=names, path=paths, expected=st.booleans())
    def record(self, name: str, path: list[int], expected: bool) -> None:
        if name in self.held:
            self.index.recorded(name, keys(path), expected=expected)
            prefixes = heads(path)
            self.hoped[name] = (
                self.hoped[name] | (prefixes - self.held[name]) if expected else self.hoped[name] - prefixes
            )
            self.held[name] |= prefixes
            self.forget(name)
            capacity = self.capacity[name]
            assert self.index.matched(keys(path)).get(name, 0) == min(len(path), 30 if capacity is None else capacity)

    @precondition(lambda self: self.held)
    @rule(name=names, path=paths)
    def compute(self, name: str, path: list[int]) -> None:
        if name in self.held:
            self.index.computed(name, keys(path))
            self.hoped[name] -= heads(path)

    @precondition(lambda self: self.held)
    @rule(name=names, path=paths, kept=st.integers(0, 8))
    def withdraw(self, name: str, path: list[int], kept: int) -> None:
        if name in self.held:
            self.index.withdrawn(name, keys(path), kept)
            held = self.held[name]
            for depth in range(len(path), kept, -1):
                prefix = tuple(path[:depth])
                followed = any(len(longer) > depth and longer[:depth] == prefix for longer in held)
                if followed or prefix in held - self.hoped[name]:
                    break
                held.discard(prefix)
                self.hoped[name].discard(prefix)

    @precondition(lambda self: self.held)
    @rule(name=names, path=paths, delivered=st.integers(0, 8))
    def miss(self, name: str, path: list[int], delivered: int) -> None:
        """Which of what continues a lost part goes is the index's affair; all else stays, and what is on its way."""
        before = self.held.get(name, set())
        if tuple(path) in before:
            self.index.missed(name, keys(path), delivered)
            after = {prefix for prefix in before if self.index.matched(keys(prefix)).get(name, 0) == len(prefix)}
            lost = tuple(path[: delivered + 1])
            for prefix in before - after:
                assert delivered < len(path)
                assert prefix[: delivered + 1] == lost
                assert prefix not in heads(path) | self.hoped[name]
            self.held[name] = after

    @precondition(lambda self: self.held)
    @rule(name=names, capacity=capacities)
    def resize(self, name: str, capacity: int | None) -> None:
        if name in self.held:
            self.index.resized(name, capacity)
            self.capacity[name] = capacity
            self.forget(name)

    @precondition(lambda self: self.held)
    @rule(name=names)
    def clear(self, name: str) -> None:
        if name in self.held:
            self.index.cleared(name)
            self.held[name], self.hoped[name] = set(), set()

    @precondition(lambda self: self.held)
    @rule(name=names, firsts=st.sets(st.integers(0, 2)))
    def lose(self, name: str, firsts: set[int]) -> None:
        if name in self.held:
            self.index.lost(name, {keys([first])[0] for first in firsts})
            for prefixes in (self.held[name], self.hoped[name]):
                prefixes -= {prefix for prefix in prefixes if prefix[0] in firsts}

    def forget(self, name: str) -> None:
        """Which prefixes went is the index's affair; that only as many went as had to is checked here."""
        capacity = self.capacity[name]
        before = self.held[name]
        after = {prefix for prefix in before if self.index.matched(keys(prefix)).get(name, 0) == len(prefix)}
        assert len(after) == min(len(before), 30 if capacity is None else capacity)
        self.held[name] = after
        self.hoped[name] &= after

    @invariant()
    def is_sound(self) -> None:
        assert_sound(self.index)

    @invariant()
    def holds_what_it_should(self) -> None:
        for name, held in self.held.items():
            assert self.index.held_blocks(name) == len(held)
            for prefix in held:
                assert self.index.matched(keys(prefix))[name] == len(prefix)

    @invariant()
    def keeps_nothing_for_nobody(self) -> None:
        if not any(self.held.values()):
            assert self.index.runs == 0

    @invariant()
    def knows_hope_from_deed(self) -> None:
        for name, hoped in self.hoped.items():
            if name in self.held:
                holder = self.index._holders[name]
                assert len(hoped) == sum(holder.depths[run] - computed for run, computed in holder.expected.items())


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


@given(st.lists(st.tuples(st.sampled_from("abc"), paths), max_size=20), paths)
def test_a_match_is_the_longest_common_head(recorded: list[tuple[str, list[int]]], asked: list[int]) -> None:
    index = index_of(*"abc")
    expected: dict[str, int] = {}
    for name, path in recorded:
        index.recorded(name, keys(path))
        common = next(
            (i for i, (x, y) in enumerate(zip(path, asked, strict=False)) if x != y), min(map(len, (path, asked)))
        )
        if common:
            expected[name] = max(expected.get(name, 0), common)
    assert index.matched(keys(asked)) == expected


def test_an_empty_prompt_is_nowhere() -> None:
    index = index_of("r1")
    index.recorded("r1", ())
    assert index.matched(()) == {}
    assert index.shared_blocks(()) == 0
    assert index.runs == index.held_blocks("r1") == 0


def test_the_longest_match_wins_whoever_joined_first() -> None:
    index = index_of("r1", "r2")
    prompt = unique(1, 9)
    index.recorded("r1", prompt[:2])
    index.recorded("r2", prompt)
    assert index.matched(prompt) == {"r1": 2, "r2": 9}


def test_a_match_is_anchored_at_the_start() -> None:
    index = index_of("p1", "p2")
    index.recorded("p1", keys([1, 1, 1]))
    index.recorded("p2", keys([2, 2, 2]))
    assert index.matched(keys([2, 2, 2, 1, 1, 1])) == {"p2": 3}


def test_a_tail_goes_before_its_head() -> None:
    index = index_of("r1", capacity_blocks=10)
    old = unique(1, 8)
    index.recorded("r1", old)
    index.recorded("r1", unique(2, 5))
    assert index.held_blocks("r1") == 10
    assert index.matched(old) == {"r1": 5}
    assert index.matched(unique(2, 5)) == {"r1": 5}


def test_what_has_no_name_takes_room_and_goes_before_its_prompt() -> None:
    index = index_of("r1", capacity_blocks=10)
    index.recorded("r1", unique(1, 4))
    index.filled("r1", unique(1, 4), 2, 0)
    assert index.held_blocks("r1") == 6
    index.recorded("r1", unique(2, 5))
    assert (index.held_blocks("r1"), index.matched(unique(1, 4))) == (10, {"r1": 4})
    assert not index._holders["r1"].given_up
    index.recorded("r1", unique(3, 2))
    assert index.matched(unique(1, 4)) == {"r1": 3}
    index.filled("r1", unique(3, 2), 1, 0)
    index.lost("r1", ())
    index.missed("r1", unique(2, 5), 0)
    index.cleared("r1")
    assert index.runs == index.held_blocks("r1") == 0
    assert_sound(index)


def test_what_was_taken_for_a_while_costs_others() -> None:
    index = index_of("r1", capacity_blocks=10)
    index.recorded("r1", unique(1, 5))
    index.recorded("r1", unique(2, 5))
    index.filled("r1", unique(2, 5), 0, 1)
    assert index.matched(unique(1, 5)) == {"r1": 4}
    assert index.matched(unique(2, 5)) == {"r1": 5}
    index.filled("r1", (), 0, 11)
    index.filled("r1", (), 1, 11)
    assert index.held_blocks("r1") == 0


def test_a_block_that_was_not_filled_is_not_held() -> None:
    index = index_of("r1", "r2")
    for name in ("r1", "r2"):
        index.recorded(name, unique(1, 5))
    index.filled("r1", unique(1, 5), -1, 0)
    assert index.matched(unique(1, 5)) == {"r1": 4, "r2": 5}
    index.filled("r1", (), -1, 0)
    index.recorded("r2", unique(1, 7))
    index.filled("r2", unique(1, 5), -1, 0)  # something continues it
    assert index.matched(unique(1, 7)) == {"r1": 4, "r2": 7}
    index.filled("r2", unique(1, 1), -2, 0)
    index.recorded("r2", unique(2, 1))
    index.filled("r2", unique(2, 1), -3, 0)
    assert index.matched(unique(2, 1)) == {}
    assert_sound(index)


def test_a_prompt_larger_than_the_cache_keeps_its_head() -> None:
    index = index_of("r1", capacity_blocks=10)
    index.recorded("r1", unique(1, 25))
    assert index.matched(unique(1, 25)) == {"r1": 10}


def test_looking_up_keeps_nothing_alive() -> None:
    index = index_of("r1", capacity_blocks=2)
    index.recorded("r1", unique(1, 1))
    index.recorded("r1", unique(2, 1))
    for _ in range(100):
        index.matched(unique(1, 1))
        index.shared_blocks(unique(1, 1))
    index.recorded("r1", unique(3, 1))
    assert index.matched(unique(1, 1)) == {}
    assert index.matched(unique(2, 1)) == {"r1": 1}


def test_using_a_prompt_again_keeps_it() -> None:
    index = index_of("r1", capacity_blocks=2)
    for prompt in (1, 2, 1, 3):
        index.recorded("r1", unique(prompt, 1))
    assert index.matched(unique(1, 1)) == {"r1": 1}
    assert index.matched(unique(2, 1)) == {}


def test_recording_again_counts_once() -> None:
    index = index_of("r1")
    for _ in range(5):
        index.recorded("r1", unique(1, 3))
    assert index.held_blocks("r1") == 3
    assert index.runs == 1


def test_a_conversation_is_one_run() -> None:
    index = index_of("r1")
    for blocks in range(1, 60):
        index.recorded("r1", unique(1, blocks))
    assert index.runs == 1
    assert index.held_blocks("r1") == 59


def test_one_replica_s_evictions_are_its_own() -> None:
    index = index_of("r1", "r2")
    index.recorded("r1", unique(1, 8))
    index.recorded("r2", unique(1, 8))
    index.resized("r1", 3)
    assert index.matched(unique(1, 8)) == {"r1": 3, "r2": 8}
    index.cleared("r2")
    assert index.matched(unique(1, 8)) == {"r1": 3}
    assert_sound(index)


def test_70_replicas_hold_one_prompt() -> None:
    names = [f"r{number}" for number in range(70)]
    index = index_of(*names)
    for depth, name in enumerate(names, start=1):
        index.recorded(name, unique(1, 80)[:depth])
    assert index.matched(unique(1, 80)) == {name: depth for depth, name in enumerate(names, start=1)}
    assert_sound(index)


def test_replicas_that_come_and_go_leave_nothing() -> None:
    index = index_of("stays", capacity_blocks=100)
    index.recorded("stays", unique(1, 20))
    for number in range(500):
        name = f"r{number}"
        index.joined(name, 50)
        for prompt in range(4):
            index.recorded(name, unique(prompt, 20))
        index.left(name)
    assert index.runs == 1
    assert len(index._tree.by_bit) == len(index._holders) == 1
    assert max(index._tree.by_bit) == 1, "bits are used again"
    index.left("stays")
    assert index.runs == 0


def test_memory_stops_growing_at_capacity() -> None:
    index = index_of("r1", "r2", capacity_blocks=500)
    runs = []
    for prompt in range(2_000):
        index.recorded(f"r{1 + prompt % 2}", unique(prompt, 64))
        runs.append(index.runs)
    assert index.held_blocks("r1") == index.held_blocks("r2") == 500
    assert max(runs[1_000:]) <= max(runs[:1_000])
    assert_sound(index)


def test_a_replica_of_unknown_size_is_bounded() -> None:
    index = PrefixIndex(unknown_capacity_blocks=10)
    index.joined("r1")
    index.recorded("r1", unique(1, 25))
    assert index.held_blocks("r1") == 10


def test_withdrawn_forgets_what_was_only_expected() -> None:
    index = index_of("r1")
    index.recorded("r1", unique(1, 5))
    index.recorded("r1", unique(1, 9), expected=True)
    index.withdrawn("r1", unique(1, 9), 0)
    assert index.matched(unique(1, 9)) == {"r1": 5}


def test_withdrawn_spares_what_has_been_computed() -> None:
    index = index_of("r1")
    index.recorded("r1", unique(1, 9), expected=True)
    index.computed("r1", unique(1, 7))
    index.withdrawn("r1", unique(1, 9), 0)
    assert index.matched(unique(1, 9)) == {"r1": 7}


def test_withdrawn_spares_what_it_is_told_to_keep() -> None:
    index = index_of("r1")
    index.recorded("r1", unique(1, 9), expected=True)
    index.withdrawn("r1", unique(1, 9), 6)
    assert index.matched(unique(1, 9)) == {"r1": 6}


def test_withdrawn_spares_what_a_longer_prompt_needs() -> None:
    index = index_of("r1")
    index.recorded("r1", unique(1, 9), expected=True)
    index.withdrawn("r1", unique(1, 6), 0)
    assert index.matched(unique(1, 9)) == {"r1": 9}


def test_withdrawn_spares_what_a_sister_needs() -> None:
    index = index_of("r1")
    index.recorded("r1", keys([1, 1, 2, 2]), expected=True)
    index.recorded("r1", keys([1, 1, 3, 3]), expected=True)
    index.withdrawn("r1", keys([1, 1, 3, 3]), 0)
    assert index.matched(keys([1, 1, 3, 3])) == {"r1": 2}
    assert index.matched(keys([1, 1, 2, 2])) == {"r1": 4}


def test_withdrawn_is_not_stopped_by_another_replica_s_branches() -> None:
    index = index_of("cold", "warm")
    for conversation in range(10):
        index.recorded("warm", keys([1, 1, 5 + conversation]))
    index.recorded("cold", keys([1, 1, 4]), expected=True)
    index.withdrawn("cold", keys([1, 1, 4]), 0)
    assert index.matched(keys([1, 1, 4])) == {"warm": 2}
    index.recorded("cold", keys([1, 1]), expected=True)
    index.withdrawn("cold", keys([1, 1, 6]), 0)
    assert index.matched(keys([1, 1, 6])) == {"warm": 3}
    assert_sound(index)


def test_a_split_keeps_hope_apart_from_deed() -> None:
    index = index_of("r1", "r2")
    index.recorded("r1", keys([1, 1, 2, 2]))
    index.recorded("r1", keys([1, 1, 2, 2, 2, 2]), expected=True)
    index.recorded("r2", keys([1, 1, 2, 3]))
    index.recorded("r2", keys([1, 1, 2, 2, 2, 3]))
    assert_sound(index)
    index.withdrawn("r1", keys([1, 1, 2, 2, 2, 2]), 0)
    assert index.matched(keys([1, 1, 2, 2, 2, 2])) == {"r1": 4, "r2": 5}


def test_a_head_nobody_has_computed_is_not_shared() -> None:
    index = index_of("r1", "r2")
    for conversation in range(SHARED_AFTER + 2):
        index.recorded("r1", keys([1, 2, 3, 10 + conversation]), expected=True)
    assert index.shared_blocks(keys([1, 2, 3, 99])) == 0
    index.computed("r1", keys([1, 2, 3, 10]))
    assert index.shared_blocks(keys([1, 2, 3, 99])) == 3


def test_a_head_that_all_prompts_share_is_scarce_until_every_replica_has_it() -> None:
    index = index_of("r1", "r2", "r3")
    asked = keys([1, 2, 3, 99])
    for conversation in range(20):
        index.recorded("r1", keys([1, 2, 3, 10 + conversation]))
    assert index.found(asked) == ({"r1": 3}, 3, 3)
    index.recorded("r2", keys([1, 2, 3, 50]))
    assert index.found(asked).scarce_blocks == 3
    index.recorded("r3", keys([1, 2, 3, 60]))
    assert index.found(asked) == ({"r1": 3, "r2": 3, "r3": 3}, 3, 0)


def test_a_head_of_few_prompts_is_not_scarce() -> None:
    index = index_of("r1", "r2", "r3")
    for tenant in range(6):
        for conversation in range(SHARED_AFTER):
            index.recorded("r1", keys([tenant, 2, 3, 10 + conversation]))
    assert index.found(keys([0, 2, 3, 99])) == ({"r1": 3}, 3, 0), "a sixth of all prompts, a third of the copies"


def test_a_replica_that_tells_is_believed() -> None:
    index = index_of("r1", "r2")
    index.recorded("r1", unique(1, 9))
    index.recorded("r2", unique(1, 9))
    assert index.copies("r1") is None
    index.stored("r1", unique(1, 4), None)
    assert index.matched(unique(1, 9)) == {"r1": 4, "r2": 9}
    assert index.held_blocks("r1") == 4
    index.removed("r1", unique(1, 4)[2:])
    assert index.matched(unique(1, 9)) == {"r1": 2, "r2": 9}
    index.cleared("r1")
    assert index.matched(unique(1, 9)) == {"r2": 9}
    assert index.held_blocks("r1") == 0


def test_what_is_on_its_way_counts_beside_what_was_told() -> None:
    index = index_of("r1")
    index.stored("r1", unique(1, 4), None)
    index.recorded("r1", unique(1, 9), expected=True)
    assert index.matched(unique(1, 9)) == {"r1": 9}
    index.computed("r1", unique(1, 9))
    assert index.matched(unique(1, 9)) == {"r1": 4}, "its events tell the rest"


def test_an_orphan_is_not_at_the_start() -> None:
    index = index_of("r1")
    index.stored("r1", unique(1, 3)[2:], unique(1, 3)[1])
    copies = index.copies("r1")
    assert copies is not None
    assert copies.orphans == 1
    assert index.matched(unique(1, 3)) == {}
    index.stored("r1", unique(1, 3)[:2], None)
    assert index.matched(unique(1, 3)) == {"r1": 3}


def test_a_replica_that_told_leaves_nothing() -> None:
    index = index_of("r1")
    index.stored("r1", unique(1, 4), None)
    index.left("r1")
    index.joined("r1")
    assert index.matched(unique(1, 4)) == {}
    assert index.copies("r1") is None
    index.removed("r1", unique(1, 4))
    assert index.held_blocks("r1") == 0


def test_a_head_is_shared_once_enough_prompts_continue_it() -> None:
    index = index_of("r1", "r2")
    system = [1, 2, 3, 4]
    for conversation in range(SHARED_AFTER):
        assert index.shared_blocks(keys([*system, 99])) == 0
        index.recorded(f"r{1 + conversation % 2}", keys([*system, 10 + conversation, 7, 7]))
    assert index.shared_blocks(keys([*system, 99])) == 4
    assert index.shared_blocks(keys([*system, 10, 7, 7])) == 4
    assert index.shared_blocks(keys(system[:3])) == 0
    index.cleared("r1")
    assert index.shared_blocks(keys([*system, 99])) == 0


def test_names_are_known_once() -> None:
    index = index_of("r1")
    with pytest.raises(FleetError, match="'r1' joined the index twice"):
        index.joined("r1")
    with pytest.raises(FleetError, match="'r2'"):
        index.recorded("r2", unique(1, 2))
    with pytest.raises(FleetError, match="'r2'"):
        index.left("r2")


def test_it_tells_of_itself() -> None:
    index = index_of("r1", "r2")
    index.recorded("r2", unique(1, 3))
    assert repr(index) == "<PrefixIndex 2 replicas, 1 runs, 3 blocks held>"


def test_what_continues_a_lost_part_and_was_not_used_since_is_withdrawn() -> None:
    index = PrefixIndex()
    index.joined("r1", 100)
    index.recorded("r1", keys([1, 2, 3, 4, 10, 11]))
    index.recorded("r1", keys([1, 2, 8, 9]))
    index.recorded("r1", keys([1, 2, 3, 4, 20, 21]))
    index.recorded("r1", keys([1, 2, 3, 4, 30, 31]))  # sent; only two blocks were there
    index.recorded("r1", keys([1, 2, 3, 4, 40, 41]))  # sent after it
    index.missed("r1", keys([1, 2, 3, 4, 30, 31]), 2)
    assert index.matched(keys([1, 2, 3, 4, 10, 11])) == {"r1": 4}
    assert index.matched(keys([1, 2, 3, 4, 20, 21])) == {"r1": 4}
    assert index.matched(keys([1, 2, 3, 4, 30, 31])) == {"r1": 6}
    assert index.matched(keys([1, 2, 3, 4, 40, 41])) == {"r1": 6}
    assert index.matched(keys([1, 2, 8, 9])) == {"r1": 4}


def test_what_goes_on_in_the_run_of_a_lost_part_is_withdrawn_unless_somebody_needs_it() -> None:
    whole, prompt = keys([1, 2, 3, 4, 5, 6]), keys([1, 2, 3, 4])
    index = index_of("r1", "r2")
    for name in ("r1", "r2"):
        index.recorded(name, whole)
    index.recorded("r1", prompt)  # sent again, shorter; one block was there
    index.missed("r1", prompt, 1)
    assert index.matched(whole) == {"r1": 4, "r2": 6}
    assert index.held_blocks("r1") == 4
    index.recorded("r1", whole, expected=True)  # on its way, it computes the rest anew
    index.missed("r1", prompt, 1)
    assert index.matched(whole) == {"r1": 6, "r2": 6}
    index.computed("r1", whole)
    index.recorded("r1", keys([1, 2, 3, 4, 5, 6, 7]), expected=True)  # needs all that it continues
    index.missed("r1", prompt, 1)
    assert index.matched(keys([1, 2, 3, 4, 5, 6, 7])) == {"r1": 7, "r2": 6}
    assert_sound(index)


def test_what_somebody_on_the_way_needs_is_not_withdrawn_from_under_him() -> None:
    index = index_of("r1")
    index.recorded("r1", keys([1, 2]))
    index.recorded("r1", keys([1, 2, 3, 4]))
    index.recorded("r1", keys([1, 2, 8]))  # a branch, so that the others are runs of their own
    index.recorded("r1", keys([1, 2, 3, 4, 5]))
    index.recorded("r1", keys([1, 2, 3, 4, 6]), expected=True)
    index.missed("r1", keys([1, 2]), 0)
    assert_sound(index)
    assert index.matched(keys([1, 2, 3, 4, 6])) == {"r1": 5}
    assert index.matched(keys([1, 2, 3, 4, 5])) == {"r1": 4}
    assert index.matched(keys([1, 2, 8])) == {"r1": 2}


def test_a_missed_prompt_that_nothing_continues_stays_as_it_was_computed() -> None:
    index = PrefixIndex()
    index.joined("r1", 100)
    index.recorded("r1", keys([1, 2, 3]))
    index.missed("r1", keys([1, 2, 3]), 0)
    assert index.matched(keys([1, 2, 3])) == {"r1": 3}


def test_blocks_given_up_for_lack_of_room_are_remembered_until_the_cache_is_cleared() -> None:
    index = PrefixIndex()
    index.joined("r1", 4)
    index.recorded("r1", keys([1, 2, 3]))
    index.recorded("r1", keys([7, 8, 9]))
    given_up = keys([1, 2, 3])[1]
    assert index.gave_up("r1", given_up)
    assert not index.gave_up("r1", keys([1, 2, 3])[0])
    index.cleared("r1")
    assert not index.gave_up("r1", given_up)


def test_what_events_told_is_forgotten_and_what_was_recorded_counts_again() -> None:
    index = PrefixIndex()
    index.joined("r1", 100)
    index.recorded("r1", keys([1, 2, 3]))
    index.stored("r1", keys([7, 8]), None)
    assert (index.matched(keys([1, 2, 3])), index.matched(keys([7, 8]))) == ({}, {"r1": 2})
    index.untold("r1")
    assert (index.matched(keys([1, 2, 3])), index.matched(keys([7, 8]))) == ({"r1": 3}, {})
    index.untold("r1")  # nothing to forget
    assert index.held_blocks("r1") == 3
