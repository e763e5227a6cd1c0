"""The keys of a prompt's blocks as one packed string: a sequence that has no object for each of them.

A chat of 32 KB has 500 blocks, and to make and free as many objects costs more than to find and place it. The one rule:
a `Keys` is a sequence of keys like any other, equal to the tuple of them. Not here: how keys are made
(`policies.blocks`).
"""

from collections.abc import Iterator, Sequence
from typing import overload

from policies.blocks import KEY_BYTES


class Keys(Sequence[bytes]):
    """Consecutive keys of `KEY_BYTES` bytes each."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __repr__(self) -> str:
        return f"<Keys of {len(self)} blocks>"

    def __len__(self) -> int:
        return len(self.packed) // KEY_BYTES

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step == 1:
                stop = max(start, stop)  # compiled, a slice of bytes must not end before it starts (mypyc 2.4)
                return Keys(self.packed[start * KEY_BYTES : stop * KEY_BYTES])
            return tuple([self[at] for at in range(start, stop, step)])
        start = place * KEY_BYTES if place >= 0 else place * KEY_BYTES + len(self.packed)
        if 0 <= start < len(self.packed):
            return self.packed[start : start + KEY_BYTES]
        raise IndexError(f"there is no key {place} of {len(self)}")

    def __iter__(self) -> Iterator[bytes]:
        packed = self.packed
        return iter([packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Keys):
            return self.packed == other.packed
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type["Keys"], tuple[bytes]]:
        """A compiled class copies itself in no other way, and policies that keep keys are copied for dry runs."""
        return Keys, (self.packed,)


def packed_keys(blocks: Sequence[bytes], start: int = 0) -> bytes:
    """Keys from place `start` on, one after the other."""
    return blocks.packed[start * KEY_BYTES :] if isinstance(blocks, Keys) else b"".join(blocks[start:])


def continued(blocks: Sequence[bytes], more: Sequence[bytes]) -> Sequence[bytes]:
    """Keys followed by others."""
    if not more:
        return blocks
    return Keys(packed_keys(blocks) + packed_keys(more))
