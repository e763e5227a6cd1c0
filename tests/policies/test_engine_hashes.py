"""vLLM's own block hashes, against what its functions gave and what a running engine published."""

import gzip
import json
from pathlib import Path

import pytest

from policies.engine_hashes import ALGORITHMS, FIXED_SEED, block_hash, block_hashes, extra_keys_of, root_hash, short

RECORDING = Path(__file__).parents[1] / "recordings" / "engine_hashes.json.gz"
RECORDED = json.loads(gzip.decompress(RECORDING.read_bytes()))

GOLDEN = [
    pytest.param(golden, algorithm, vector, id=f"{golden['PYTHONHASHSEED']}-{algorithm}-{vector['name']}")
    for golden in RECORDED["golden"]
    for algorithm, told in golden["algos"].items()
    for vector in told.get("vectors", ())
]


def extra_keys(vector, at, block_tokens):
    """The extra keys of block `at`, made from what the request was."""
    start, end = at * block_tokens, (at + 1) * block_tokens
    lora = vector["lora"] or {"name": "", "path": ""}
    images = [(name, offset - start) for name, offset, size in vector["mm"] if offset < end and offset + size > start]
    salt = (vector["cache_salt"] or "") if at == 0 else ""
    return extra_keys_of(adapter=lora["name"], adapter_path=lora["path"], images=images, salt=salt)


@pytest.mark.parametrize(("golden", "algorithm", "vector"), GOLDEN)
def test_it_equals_vllm_bit_for_bit(golden, algorithm, vector):
    seed, size = golden["PYTHONHASHSEED"] or FIXED_SEED, golden["block_size"]
    root = root_hash(algorithm, seed)
    assert root.hex() == golden["algos"][algorithm]["none_hash_hex"]
    extras = [extra_keys(vector, at, size) for at in range(len(vector["block_hashes_hex"]))]
    made = list(block_hashes(algorithm, root, vector["token_ids"], size, extras))
    assert [full.hex() for full in made] == vector["block_hashes_hex"]
    assert [short(full) for full in made] == vector["event_int64"]


def test_every_algorithm_is_in_the_recording():
    assert {algorithm for golden in RECORDED["golden"] for algorithm in golden["algos"]} == set(ALGORITHMS)
    assert len(GOLDEN) == 110


@pytest.mark.parametrize("seed", ["0", FIXED_SEED])
def test_versions_before_the_tags(seed):
    told = RECORDED["H01"]
    wanted, tokens, size = told["vectors"][seed], told["tokens"], told["block_size"]
    adapter, salt_a, salt_b = "adapter-116", "tenant-a", "tenant-b"
    cases = {
        "plain": [{}, {}],
        f"lora {adapter}": [{"adapter": adapter}] * 2,
        f"cache_salt {salt_a}": [{"salt": salt_a}, {}],
        f"cache_salt {salt_b}": [{"salt": salt_b}, {}],
        "image img-A at token 2, length 4 (key (id, offset relative to block))": [
            {"images": [("img-A", 2)]},
            {"images": [("img-A", -2)]},
        ],
        "lora + salt": [{"adapter": adapter, "salt": salt_a}, {"adapter": adapter}],
    }
    root = root_hash("sha256_cbor", seed)
    assert root.hex() == wanted["none_hash"]
    for name, keys in cases.items():
        extras = [extra_keys_of(**key, tagged=False) for key in keys]
        assert [full.hex() for full in block_hashes("sha256_cbor", root, tokens, size, extras)] == wanted[name], name
    assert short(block_hash("sha256_cbor", root, tokens[:size])) == wanted["plain, low 64 bits of block 0 as int"]
