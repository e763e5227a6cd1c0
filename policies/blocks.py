"""Chained keys of full blocks of token ids: the router's own names for what a prefix cache may hold.

    seed     model, LoRA adapter and salt, each framed by its length, so that no two triples give the same bytes
    key_i    the first 16 bytes of SHA-256(seed || the first i blocks of token ids), one running digest per prompt
    token    an id as 4 little-endian bytes

A key therefore names the whole prefix up to its block. The keys need not equal an engine's hashes; they obey the same
rule (vLLM 0.32, `v1/core/kv_cache_utils.py`): only full blocks, and never the last token of a prompt.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import Final, Protocol

from policies.values import Loose

KEY_BYTES: Final = 16
TOKEN_BYTES: Final = 4


class Digest(Protocol):
    """What `hashlib` makes."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...

    def copy(self) -> "Digest": ...


class Chain(Loose):
    """A prefix so far: a running SHA-256 and the token bytes that do not fill a block yet."""

    _digest: Digest
    _tail: bytes = b""

    def __repr__(self) -> str:
        return f"<Chain with {self.tail_tokens} tokens that fill no block yet>"  # none of the tokens

    @classmethod
    def root(cls, model: str, adapter: str = "", salt: str = "") -> "Chain":
        """Where every prompt of one model, adapter and salt begins."""
        digest = hashlib.sha256()
        for field in (model, adapter, salt):
            data = field.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return cls(digest)

    def copy(self) -> "Chain":
        return Chain(self._digest.copy(), self._tail)

    @property
    def tail_tokens(self) -> int:
        """Tokens that wait for their block to fill."""
        return len(self._tail) // TOKEN_BYTES

    def identity(self) -> bytes:
        """The 32 bytes that tell this chain from any other: of a root, its model, adapter and salt."""
        digest = self._digest.copy()
        digest.update(self._tail)
        return digest.digest()

    def next_key(self, block: bytes) -> bytes:
        """Append one whole block of packed ids where none waits to fill; return its key."""
        self._digest.update(block)
        return self._digest.digest()[:KEY_BYTES]

    def grow(self, token_bytes: bytes | memoryview, block_tokens: int) -> list[bytes]:
        """Append packed token ids; return the keys of the blocks that became full."""
        data = self._tail + bytes(token_bytes) if self._tail else bytes(token_bytes)
        step = block_tokens * TOKEN_BYTES
        whole = len(data) - len(data) % step
        self._tail = data[whole:]
        return _keys(self._digest, data, whole, step)


def _keys(running: Digest, data: bytes, whole: int, step: int) -> list[bytes]:
    update, digest = running.update, running.digest
    keys = []
    for start in range(0, whole, step):
        update(data[start : start + step])
        keys.append(digest()[:KEY_BYTES])
    return keys


def packed(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32. Raises `OverflowError` for an id that is negative or over 32 bits."""
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def block_keys(root: Chain, token_bytes: bytes, block_tokens: int) -> tuple[bytes, ...]:
    """Keys of all full blocks of one prompt; the chain stays as it is."""
    data = root._tail + token_bytes
    step = block_tokens * TOKEN_BYTES
    whole = len(data) - len(data) % step
    return tuple(_keys(root._digest.copy(), data, whole, step)) if whole else ()


def hittable_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """How many leading blocks of a prompt can be read from a cache: the last token is always computed."""
    return max(0, (prompt_tokens - 1) // block_tokens)
