"""A replica's own word about its blocks: counted copies, orphans kept aside, nothing left behind."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from policies.copies import Copies

Path = tuple[int, ...]


def key(path: Sequence[int]) -> bytes:
    """The key of the block at the end of a path; like a chained key, it names the whole path."""
    return bytes(path)


def keys(path: Sequence[int]) -> list[bytes]:
    return [key(path[:depth]) for depth in range(1, len(path) + 1)]


paths = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
stores = st.tuples(st.just("stored"), paths, st.integers(0, 5))
removes = st.tuples(st.just("removed"), paths, st.just(0))


@given(st.lists(st.one_of(stores, removes), max_size=40), paths)
def test_it_equals_a_bag_of_blocks(events: list[tuple[str, Path, int]], asked: Path) -> None:
    copies, bag = Copies(), Counter[Path]()
    for kind, path, known in events:
        if kind == "stored":
            start = min(known, len(path) - 1)  # the event tells only what follows the first `start` blocks
            copies.stored(keys(path)[start:], key(path[:start]) if start else None)
            bag.update(path[:depth] for depth in range(start + 1, len(path) + 1))
        else:
            copies.removed([key(path)])
            bag -= Counter([path])
    assert len(copies) == len(bag)
    assert copies.orphans == sum(len(path) > 1 and path[:-1] not in bag for path in bag)
    depths = range(1, len(asked) + 1)
    assert copies.matched(keys(asked)) == next((d - 1 for d in depths if asked[:d] not in bag), len(asked))
    absent_parents = {path[:-1] for path in bag if len(path) > 1} - set(bag)
    assert copies.records == len(bag) + len(absent_parents)
    for path, count in bag.items():
        copies.removed([key(path)] * count)
    assert len(copies) == copies.records == copies.orphans == 0


def test_two_stores_need_two_removes() -> None:
    copies = Copies()
    copies.stored(keys([1, 2]), None)
    copies.stored(keys([1, 2]), None)
    assert len(copies) == 2
    copies.removed(keys([1, 2]))
    assert copies.matched(keys([1, 2])) == 2
    copies.removed(keys([1, 2]))
    assert copies.matched(keys([1, 2])) == 0


def test_a_repeated_store_does_not_inflate_the_size() -> None:
    copies = Copies()
    for _ in range(5):
        copies.stored(keys([1, 2, 3]), None)
    assert len(copies) == 3


def test_a_remove_of_something_untold_is_nothing() -> None:
    copies = Copies()
    copies.removed(keys([1, 2]))
    copies.stored(keys([1, 2])[1:], key([1]))
    copies.removed([key([1])])
    assert (len(copies), copies.orphans) == (1, 1)


def test_a_store_that_contradicts_itself_changes_nothing() -> None:
    copies = Copies()
    copies.stored(keys(range(10)), None)
    copies.stored([key([7]), key([7])], None)
    copies.stored([key([7])], key([7]))
    assert copies.refused == 2
    assert copies.matched(keys(range(10))) == len(copies) == copies.records == 10


def test_a_hole_ends_the_match() -> None:
    copies = Copies()
    copies.stored(keys([1, 2, 3, 4]), None)
    copies.removed([key([1, 2])])
    assert copies.orphans == 1
    assert copies.matched(keys([1, 2, 3, 4])) == 1


def test_cleared_forgets_orphans_too() -> None:
    copies = Copies()
    copies.stored([key([1, 2])], key([1]))
    copies.cleared()
    assert len(copies) == copies.records == copies.orphans == 0
    assert copies.matched(()) == 0
