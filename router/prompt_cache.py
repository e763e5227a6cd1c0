"""Text prefixes that were tokenized and hashed before, so that a conversation's next turn costs its new text alone.

A prefix is known by a 16-byte name (chained hashes that begin at the chain's root, so tenants never share) and holds no
text and no ids: the chain's state after it, its token count, and the packed keys its last piece added. The one rule:
bounded in bytes, least recently used first out, and a prefix never before those that continue it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from xxhash import xxh3_128_digest

from policies.blocks import Chain
from policies.keys import Keys
from policies.values import Value


class Prefix(Value, frozen=True):
    """What is known of a text prefix."""

    chain: Chain
    """The running digest after it. Never grown in place: `copy` first."""
    keys: bytes
    """Packed keys of the blocks that its last piece completed."""
    tokens: int
    """Tokens from the root to its end."""
    parent: "Prefix | None"

    def all_keys(self) -> Keys:
        """Keys of all full blocks from the root."""
        runs = []
        prefix: Prefix | None = self
        while prefix is not None:
            runs.append(prefix.keys)
            prefix = prefix.parent
        return Keys(b"".join(reversed(runs)))


def utf8(text: str) -> bytes:
    """A text's bytes, lone surrogates and all."""
    return text.encode("utf-8", "surrogatepass")


def names(pieces: Sequence[bytes], root: bytes, seed: int) -> list[bytes]:
    """Names of the growing prefixes of a text cut into pieces: XXH3 of the name before, `root` at first, and the piece.

    `seed`, of 64 bits, is to be drawn by chance and told nobody, for XXH3 is no cryptographic hash: who knew it could
    make two texts of one name, and so prompts of his own that are taken for another. SHA-256 costs ten times as much.
    """
    name = xxh3_128_digest(root, seed)
    found = []
    for piece in pieces:
        name = xxh3_128_digest(name + piece, seed)
        found.append(name)
    return found


class PrefixCache:
    """The prefixes known at the moment. Not safe for threads: it lives on the event loop."""

    ENTRY_BYTES: ClassVar[int] = 640
    """An entry without its keys: measured with CPython 3.11 (name, dict slot, prefix, chain, OpenSSL state)."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._size_bytes = 0
        self._prefixes: OrderedDict[bytes, Prefix] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._prefixes)} prefixes, {self._size_bytes} of {self._capacity_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._prefixes)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def longest(self, names: Sequence[bytes]) -> tuple[int, Prefix | None]:
        """How many leading pieces are known, and what of them."""
        for count in range(len(names), 0, -1):
            prefix = self._prefixes.get(names[count - 1])
            if prefix is not None:
                return count, prefix
        return 0, None

    def add(self, names: Sequence[bytes], fresh: Sequence[Prefix]) -> None:
        """Remember the last `len(fresh)` of `names`; all become the youngest, the shortest youngest of all."""
        for name, prefix in zip(names[len(names) - len(fresh) :], fresh, strict=True):
            if name not in self._prefixes:
                self._prefixes[name] = prefix
                self._size_bytes += self.ENTRY_BYTES + len(prefix.keys)
        for name in reversed(names):
            if name in self._prefixes:
                self._prefixes.move_to_end(name)
        while self._size_bytes > self._capacity_bytes:
            _, oldest = self._prefixes.popitem(last=False)
            self._size_bytes -= self.ENTRY_BYTES + len(oldest.keys)
