"""Which prompts belong together: a bounded memory of what was asked, by prefix and by content.

    chains    a hash per 512 characters from the start: how far a prompt repeats an earlier one as caches see it
    chunks    a hash per line or sentence: which earlier prompt a text shares most with, wherever it stands

What is shared by content but not by prefix is what a broken prefix costs. The one rule: memory is bounded, whatever
comes; what is forgotten makes the doctor see less, never wrong. Not here: where two prompts part (`divergence`).
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

import xxhash
from msgspec import Struct

from router.doctor.parts import Asked, Part, canonical

PIECE = 512
_CHAINS = 400_000
_CHUNKS = 400_000
_NUMBERS = 100_000
_FAMILIES = 256
_KEPT_CHARS = 24 * 1024 * 1024
_SHORT_CHUNK = 12  # characters; shorter lines are everywhere and say nothing
_LONG_LINE = 240
_SENTENCES = re.compile(r"[^.!?。,}]{1,240}[.!?。,}]*\s*|[.!?。,}]+\s*")
_SAME_FAMILY = 0.2

_hash = xxhash.xxh3_64_intdigest


class Kept(Struct):
    """A prompt that is remembered with its text."""

    number: int
    family: int
    asked: Asked


class Placed(Struct):
    """A prompt among those before it."""

    family: int
    prefix_chars: int
    """Of the prompt's start that an earlier one had as well; in whole pieces where that one's text is forgotten."""
    partner: Kept | None
    """The earlier prompt that shares most with it beyond the prefix, where that is worth a look."""
    shared_chars: int
    """Characters beyond the prefix that the partner holds as well; an estimate."""


def chunks(text: str) -> Iterator[str]:
    """Lines, and sentences of long lines: pieces whose ends follow from the text around them, not from its start."""
    for line in text.splitlines(keepends=True):
        if len(line) <= _LONG_LINE:
            yield line
        else:
            yield from _SENTENCES.findall(line)


def hashed(text: str, seed: int = 0) -> int:
    return _hash(text.encode("utf-8", "surrogatepass"), seed)


def common_chars(a: str, b: str) -> int:
    """Length of the common prefix of two texts."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_parts(a: Sequence[Part], b: Sequence[Part]) -> tuple[int, int]:
    """How many leading parts are equal, and how many characters of text that and the part after them share."""
    chars = count = 0
    for one, other in zip(a, b, strict=False):
        if one.role != other.role:
            break
        same = common_chars(one.text, other.text)
        chars += same
        if same < len(one.text) or same < len(other.text):
            break
        count += 1
    return count, chars


class Families:
    """Takes prompts in order and says what each shares with earlier ones."""

    def __init__(self) -> None:
        self._chains: OrderedDict[int, int] = OrderedDict()
        self._chunks: OrderedDict[int, int] = OrderedDict()
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._kept_chars = 0
        self._latest: dict[int, Kept] = {}
        self._family_of: OrderedDict[int, int] = OrderedDict()
        self._families = 0
        self._count = 0

    def __repr__(self) -> str:
        return f"<Families {self._families} of {self._count} prompts>"

    def placed(self, ask: Asked, least_shared: float) -> Placed:
        """Take a prompt. `least_shared` is the share of its characters from which a partner is worth a look."""
        keys, sizes = _chain(ask)
        known = self._known(keys)
        before = self._chains.get(keys[known - 1]) if known else None
        prefix = self._extended(ask, sum(sizes[:known]), before)
        votes = self._voted(ask, prefix)
        number, shared = votes.most_common(1)[0] if votes else (None, 0)
        family = self._family(before, number, prefix, shared, ask.chars)
        partner = None
        if number is not None and shared >= max(least_shared * ask.chars, PIECE // 4):
            partner = self._kept.get(number) or self._latest.get(family)
        self._remember(ask, family, keys, known)
        return Placed(family, prefix, partner, shared)

    def before(self, family: int) -> Kept | None:
        """The family's latest prompt."""
        return self._latest.get(family)

    def _extended(self, ask: Asked, prefix: int, before: int | None) -> int:
        """Whole pieces, and as far beyond them as the prompt that had these goes along."""
        earlier = self._kept.get(before) if before is not None else None
        if earlier is None:
            return prefix
        return common_parts(earlier.asked.parts, ask.parts)[1]

    def _known(self, keys: list[int]) -> int:
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in self._chains:
                low = middle
            else:
                high = middle - 1
        return low

    def _voted(self, ask: Asked, skipped: int) -> "Counter[int]":
        """How many characters beyond the prefix each earlier prompt holds too; takes these chunks in as well."""
        votes: Counter[int] = Counter()
        place, index = 0, self._chunks
        own: list[int] = []
        for part in ask.parts:
            size = len(part.text)
            start, place = max(0, skipped - place), place + size
            if start >= size:
                continue
            for text in _units(part, start):
                if len(text) >= _SHORT_CHUNK:
                    key = hashed(text)
                    own.append(key)
                    seen = index.get(key)
                    if seen is not None:
                        votes[seen] += len(text)
        index.update(dict.fromkeys(own, self._count))
        while len(index) > _CHUNKS:
            index.popitem(last=False)
        return votes

    def _family(self, before: int | None, number: int | None, prefix: int, shared: int, chars: int) -> int:
        best = before if prefix >= shared else number
        if best is not None and max(prefix, shared) >= _SAME_FAMILY * chars:
            found = self._family_of.get(best)
            if found is not None:
                return found
        if self._families < _FAMILIES:
            self._families += 1
        return self._families

    def _remember(self, ask: Asked, family: int, keys: list[int], known: int) -> None:
        number = self._count
        self._count += 1
        chains = self._chains
        for key in keys[known:]:
            chains[key] = number
        while len(chains) > _CHAINS:
            chains.popitem(last=False)
        kept = Kept(number, family, ask)
        self._kept[number] = self._latest[family] = kept
        self._family_of[number] = family
        if len(self._family_of) > _NUMBERS:
            self._family_of.popitem(last=False)
        self._kept_chars += ask.chars
        while self._kept_chars > _KEPT_CHARS and len(self._kept) > 1:
            self._kept_chars -= self._kept.popitem(last=False)[1].asked.chars


def _units(part: Part, start: int) -> Iterator[str]:
    if part.role == "tools":
        yield canonical(part.text)
    elif part.opaque:
        yield part.text
    else:
        yield from chunks(part.text[start:] if start else part.text)


def _chain(ask: Asked) -> tuple[list[int], list[int]]:
    """Chained hashes of the prompt's pieces, and their sizes; a piece never spans two parts."""
    key = hashed(repr(ask.roots))
    keys, sizes = [], []
    for part in ask.parts:
        text = part.text
        key = hashed(part.role, key)
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            key = hashed(piece, key)
            keys.append(key)
            sizes.append(len(piece))
    return keys, sizes
