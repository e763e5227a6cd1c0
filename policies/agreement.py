"""How far two sequences of block keys agree.

The one rule: keys are chained, so two sequences that agree at one place agree before it too; comparing needs only the
place where they part.
"""

from collections.abc import Sequence

from policies.blocks import KEY_BYTES


def common_blocks(keys: bytes, blocks: Sequence[bytes], start: int) -> int:
    """How many of the packed `keys` equal `blocks[start:]`; the caller knows that the first one does."""
    limit = min(len(keys) // KEY_BYTES, len(blocks) - start)
    if keys.startswith(blocks[start + limit - 1], (limit - 1) * KEY_BYTES):
        return limit
    low, high = 1, limit - 1  # low blocks agree, the one after high does not
    while low < high:
        middle = (low + high + 1) // 2
        if keys.startswith(blocks[start + middle - 1], (middle - 1) * KEY_BYTES):
            low = middle
        else:
            high = middle - 1
    return low


def agreeing_blocks(mine: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """How many leading blocks two prompts have in common."""
    low, high = 0, min(len(mine), len(theirs))
    if high and mine[high - 1] == theirs[high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if mine[middle - 1] == theirs[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
