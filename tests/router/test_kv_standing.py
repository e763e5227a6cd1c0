"""The word a replica's first events earn it."""

import msgspec
import pytest

from policies.engine_hashes import ALGORITHMS, FIXED_SEED, block_hashes, root_hash, short
from router.kv_standing import ALIAS, EXACT, recomputed
from router.kv_wire import Stored

TOKENS = list(range(12))


def first_blocks(algorithm="sha256", seed=FIXED_SEED, **changes):
    made = block_hashes(algorithm, root_hash(algorithm, seed), TOKENS, 4, [None] * 3)
    told = Stored([short(full) for full in made], None, TOKENS, 4, None, "", "GPU", 0, None)
    return told._replace(**changes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", [FIXED_SEED, "0", "42"])
def test_every_algorithm_and_a_seed_that_is_known(algorithm, seed):
    standing = recomputed(first_blocks(algorithm, seed), (FIXED_SEED, "0", "42"))
    assert standing.word == EXACT
    assert algorithm in standing.reason
    assert (seed if seed != FIXED_SEED else "vLLM's own seed") in standing.reason


def test_a_seed_that_is_not_known():
    assert recomputed(first_blocks(seed="by chance")).word == ALIAS


@pytest.mark.parametrize(
    "changes", [{"parent": 7}, {"adapter": "sql"}, {"adapter": None}, {"extra_keys": [["s"], None, None]}], ids=str
)
def test_events_that_prove_nothing(changes):
    assert recomputed(first_blocks(**changes)) is None


@pytest.mark.parametrize("token", ["a", None, 1.0, msgspec.msgpack.Ext(5, b"x"), object()], ids=repr)
def test_tokens_that_are_no_numbers(token):
    assert recomputed(first_blocks(tokens=[*TOKENS[:3], token] * 3)) is None


@pytest.mark.parametrize("token", [-1, 1 << 40, -(1 << 63)])
def test_numbers_that_are_no_tokens(token):
    assert recomputed(first_blocks(tokens=[*TOKENS[:3], token] * 3)).word == ALIAS
