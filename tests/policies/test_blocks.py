"""Keys name a whole prefix, of one model, adapter and salt."""

import gc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import KEY_BYTES, Chain, block_keys, hittable_blocks, packed

token_ids = st.integers(0, 2**32 - 1)


def test_a_seed_is_framed() -> None:
    seeds = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("ab", "", "c"), ("", "ab", "c")]
    keys = {block_keys(Chain.root(*seed), packed([1, 2]), 2) for seed in seeds}
    assert len(keys) == len(seeds)


@pytest.mark.parametrize(("adapter", "salt"), [("", ""), ("sql", ""), ("", "tenant"), ("sql", "tenant")])
def test_model_adapter_and_salt_have_chains_of_their_own(adapter: str, salt: str) -> None:
    ours = block_keys(Chain.root("m", adapter, salt), packed(range(32)), 16)
    assert ours == block_keys(Chain.root("m", adapter=adapter, salt=salt), packed(range(32)), 16)
    others = [
        Chain.root("n", adapter, salt),
        Chain.root("m", adapter + "2", salt),
        Chain.root("m", adapter, salt + "2"),
    ]
    for other in others:
        assert not set(ours) & set(block_keys(other, packed(range(32)), 16))
        assert other.identity() != Chain.root("m", adapter, salt).identity()


def test_a_lone_surrogate_is_a_salt_like_any_other() -> None:
    assert Chain.root("m", "", "\ud800").identity() != Chain.root("m", "", "\ud801").identity()


def test_a_key_depends_on_everything_before_it() -> None:
    one = block_keys(Chain.root("m"), packed([1, 2, 3, 4]), 2)
    other = block_keys(Chain.root("m"), packed([9, 2, 3, 4]), 2)
    assert one[1] != other[1]
    assert [len(key) for key in one] == [KEY_BYTES, KEY_BYTES]


def test_a_block_is_known_by_its_place() -> None:
    keys = block_keys(Chain.root("m"), packed([7, 7, 7, 7, 7, 7]), 2)
    assert len(set(keys)) == 3


def test_only_full_blocks_have_keys() -> None:
    chain = Chain.root("m")
    assert chain.grow(packed(range(15)), 16) == []
    assert chain.tail_tokens == 15
    assert len(chain.grow(packed([15, 16]), 16)) == 1
    assert chain.tail_tokens == 1


def test_a_copy_goes_its_own_way() -> None:
    chain = Chain.root("m")
    chain.grow(packed([1, 2, 3]), 2)
    copy = chain.copy()
    assert copy.identity() == chain.identity()
    copy.grow(packed([4]), 2)
    assert copy.identity() != chain.identity()
    assert chain.tail_tokens == 1


@given(st.lists(token_ids, max_size=120), st.lists(st.integers(0, 120), max_size=8), st.integers(1, 20))
def test_growing_piece_by_piece_equals_the_whole(ids: list[int], cuts: list[int], block_tokens: int) -> None:
    whole = block_keys(Chain.root("m"), packed(ids), block_tokens)
    chain = Chain.root("m")
    keys: list[bytes] = []
    for start, end in pairwise([0, *sorted(cuts), len(ids)]):
        keys += chain.grow(memoryview(packed(ids[start:end])), block_tokens)
        chain = chain.copy()
    assert tuple(keys) == whole
    assert len(whole) == len(ids) // block_tokens


@given(st.lists(token_ids, max_size=60), st.lists(token_ids, max_size=60))
def test_equal_keys_are_equal_prefixes(one: list[int], other: list[int]) -> None:
    mine, theirs = (block_keys(Chain.root("m"), packed(ids), 3) for ids in (one, other))
    for position, (key, their_key) in enumerate(zip(mine, theirs, strict=False), start=1):
        assert (key == their_key) == (one[: 3 * position] == other[: 3 * position])


@pytest.mark.parametrize(
    ("prompt_tokens", "hittable"), [(0, 0), (1, 0), (15, 0), (16, 0), (17, 1), (32, 1), (33, 2), (160_001, 10_000)]
)
def test_the_last_token_is_always_computed(prompt_tokens: int, hittable: int) -> None:
    assert hittable_blocks(prompt_tokens, 16) == hittable


def test_ids_are_little_endian_words() -> None:
    assert packed([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"
    assert packed([]) == b""


@pytest.mark.parametrize("bad", [-1, 2**32, 2**70])
def test_an_id_that_is_no_word_is_refused(bad: int) -> None:
    with pytest.raises(OverflowError):
        packed([1, bad])


def test_a_chain_is_nothing_for_the_garbage_collector_and_shows_no_tokens() -> None:
    """Tens of thousands are remembered; to look through them would hold an event loop for 50 ms."""
    chain = Chain.root("m")
    chain.grow(packed([7]), 16)
    assert not gc.is_tracked(chain)
    assert repr(chain) == "<Chain with 1 tokens that fill no block yet>"
