"""What a replica's cache tells of itself: blocks that can be hit, copies given away, all forgotten.

The one rule: these are values of msgspec, made for every change of a cache that records them, and stay interpreted
where the engine is compiled. Not here: the engine's own messages and hashes (`emulator_events`).
"""

from policies.values import Value


class Stored(Value, frozen=True):
    """Blocks became hittable, in chain order; `parent` is the key before them, None at the root."""

    keys: tuple[bytes, ...]
    parent: bytes | None


class Removed(Value, frozen=True):
    """One copy of a block was handed to somebody else."""

    key: bytes


class Cleared(Value, frozen=True):
    """The whole cache was forgotten."""


Event = Stored | Removed | Cleared
