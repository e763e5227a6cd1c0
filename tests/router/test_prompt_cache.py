"""Known prefixes: named without collisions, forgotten tail first, never more than their bytes."""

from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import Chain
from router.prompt_cache import Prefix, PrefixCache, names, utf8

SEED = 5


def grown(count: int, keys: int = 2, seed: int = 0) -> list[Prefix]:
    """A chain of prefixes, each completing some blocks."""
    found: list[Prefix] = []
    for place in range(count):
        data = b"".join((seed * 1_000 + place * keys + n).to_bytes(16, "big") for n in range(keys))
        found.append(Prefix(Chain.root("m"), data, 16 * keys * (place + 1), found[-1] if found else None))
    return found


@given(st.lists(st.binary(), max_size=6), st.lists(st.binary(), max_size=6))
def test_names_tell_lists_of_pieces_apart(one: list[bytes], two: list[bytes]) -> None:
    shared = 0
    while shared < min(len(one), len(two)) and one[shared] == two[shared]:
        shared += 1
    first, second = names(one, b"seed", SEED), names(two, b"seed", SEED)
    assert first[:shared] == second[:shared]
    assert not set(first[shared:]) & set(second[shared:])


def test_names_depend_on_the_root_and_the_seed() -> None:
    assert not set(names([b"a", b"b"], b"root", 1)) & set(names([b"a", b"b"], b"root", 2))
    assert not set(names([b"a", b"b"], b"one", SEED)) & set(names([b"a", b"b"], b"two", SEED))
    assert len(names([utf8("\ud800")], b"", SEED)[0]) == 16


def test_the_longest_known_prefix_is_found() -> None:
    cache = PrefixCache(100_000)
    known, chain = names([b"a", b"b", b"c"], b"", SEED), grown(2)
    cache.add(known[:2], chain)
    assert cache.longest(known) == (2, chain[1])
    assert cache.longest(names([b"a", b"x"], b"", SEED)) == (1, chain[0])
    assert cache.longest(names([b"x"], b"", SEED)) == (0, None)
    assert cache.longest([]) == (0, None)


def test_all_keys_run_from_the_root() -> None:
    assert grown(3)[-1].all_keys() == tuple(n.to_bytes(16, "big") for n in range(6))
    assert grown(1, keys=0)[0].all_keys() == ()
    keys = Prefix(Chain.root("m"), bytes(16) + b"x" * 15 + bytes(1), 32, None).all_keys()
    assert keys == (bytes(16), b"x" * 15 + bytes(1))  # zeros at the end are part of a key


def test_the_tail_is_forgotten_before_its_head() -> None:
    entry = PrefixCache.ENTRY_BYTES + 32
    cache = PrefixCache(3 * entry)
    old, new = names([b"a", b"b", b"c"], b"", SEED), names([b"x"], b"", SEED)
    cache.add(old, grown(3))
    cache.add(new, grown(1, seed=1))
    assert cache.longest(old)[0] == 2
    cache.add(old[:2], [])  # read again: now `new` is the oldest
    cache.add(names([b"y"], b"", SEED), grown(1, seed=2))
    assert (cache.longest(old)[0], cache.longest(new)[0]) == (2, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 9)), max_size=30), st.integers(0, 9_000))
def test_it_never_holds_more_than_its_bytes(chains: list[tuple[int, int, int]], capacity_bytes: int) -> None:
    cache = PrefixCache(capacity_bytes)
    for seed, count, keys in chains:
        wanted = names([b"%d" % place for place in range(count)], bytes([seed]), SEED)
        known, _ = cache.longest(wanted)
        cache.add(wanted, grown(count, keys)[known:])
        assert cache.size_bytes <= capacity_bytes
    assert (cache.size_bytes == 0) == (len(cache) == 0)
    assert repr(cache) == f"<PrefixCache {len(cache)} prefixes, {cache.size_bytes} of {capacity_bytes} bytes>"
