"""vLLM's own block hashes, bit for bit, to prove that a replica's events mean what we think they mean.

    hash_i = H((hash_{i-1}, tokens of block i, extra keys or None)), and hash_{-1} = H(seed)

H is SHA-256 or XXH3-128 over pickle protocol 5 or canonical CBOR (vLLM 0.10 to 0.33, `v1/core/kv_cache_utils.py` and
`utils/hashing.py`). Routing never depends on it: engines seeded by chance can't be recomputed, and need not be.
Not here: reading events, and the router's own keys (`policies.blocks`).
"""

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cbor2
import xxhash

FIXED_SEED = "vllm-none-hash"
"""Root seed of SHA-256 hashes where PYTHONHASHSEED is unset, from vLLM 0.29; before, and for XXH3, it is random."""

ExtraKeys = tuple[Any, ...] | None


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _cbor(value: object) -> bytes:
    return bytes(cbor2.dumps(value, canonical=True))


ALGORITHMS: dict[str, Callable[[object], bytes]] = {
    "sha256": lambda value: hashlib.sha256(_pickled(value)).digest(),
    "sha256_cbor": lambda value: hashlib.sha256(_cbor(value)).digest(),
    "xxhash": lambda value: xxhash.xxh3_128_digest(_pickled(value)),
    "xxhash_cbor": lambda value: xxhash.xxh3_128_digest(_cbor(value)),
}
"""By the names of vLLM's `--prefix-caching-hash-algo`."""


def root_hash(algorithm: str, seed: str) -> bytes:
    """What the first block of every prompt continues; `seed` is PYTHONHASHSEED's text, or `FIXED_SEED`."""
    return ALGORITHMS[algorithm](seed)


def block_hash(algorithm: str, parent: bytes, tokens: Sequence[int], extra_keys: ExtraKeys = None) -> bytes:
    """One full block's hash. `extra_keys` as `extra_keys_of` makes them."""
    return ALGORITHMS[algorithm]((parent, tuple(tokens), extra_keys))


def block_hashes(
    algorithm: str, parent: bytes, tokens: Sequence[int], block_tokens: int, extra_keys: Iterable[ExtraKeys]
) -> Iterator[bytes]:
    """Hashes of consecutive full blocks, one for each of `extra_keys`."""
    for number, extra in enumerate(extra_keys):
        start = number * block_tokens
        parent = block_hash(algorithm, parent, tokens[start : start + block_tokens], extra)
        yield parent


def extra_keys_of(
    *,
    adapter: str = "",
    adapter_path: str = "",
    images: Sequence[tuple[str, int]] = (),
    salt: str = "",
    tagged: bool = True,
) -> ExtraKeys:
    """The extra keys of one block, in vLLM's order: adapter, images, salt (first block of a prompt only).

    `images` are (identifier, offset relative to the block's start). `tagged`: from vLLM 0.31 each is led by its kind,
    an adapter by its name and path; before, bare values.
    """
    keys: list[Any] = []
    if adapter:
        keys.append((_LORA, adapter, adapter_path) if tagged else adapter)
    keys += [(_IMAGE, *image) if tagged else image for image in images]
    if salt:
        keys.append((_SALT, salt) if tagged else salt)
    return tuple(keys) or None


# Pickle writes a second reference to one object as a back-reference. In vLLM each tag is one object of the interpreter.
_LORA, _IMAGE, _SALT = sys.intern("lora"), sys.intern("mm"), sys.intern("cache_salt")


def short(full: bytes) -> int:
    """What an event shows of a hash by default: its low 64 bits."""
    return int.from_bytes(full[-8:], "big")
