"""How far a replica's events can be believed: EXACT, ALIAS or APPROXIMATE, each with its reason.

EXACT: the engine's block hashes were recomputed, so both sides mean the same blocks. ALIAS: they could not be, and
blocks are known by the tokens the events tell, which routes as well. APPROXIMATE: there are no events to go by. The
one rule: the word is earned from events, never taken from a version or a flag. Not here: the events themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.engine_hashes import ALGORITHMS, FIXED_SEED, block_hashes, root_hash, short
from router.kv_wire import Stored

EXACT, ALIAS, APPROXIMATE = "EXACT", "ALIAS", "APPROXIMATE"
WORDS = (EXACT, ALIAS, APPROXIMATE)
_LOOKED_AT_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Standing:
    """A word of `WORDS`, and why."""

    word: str
    reason: str
    degraded: str = ""
    """What is missing of the events, as long as it is; empty when nothing is."""


@dataclass(frozen=True, slots=True)
class KvState:
    """What is known of one replica's events: a row of `/state` and the metrics."""

    name: str
    standing: Standing
    settled: bool
    """Whether all that the publishers had to tell so far was heard, or there are none."""
    buffer_batches: int | None
    """Batches that can be had again, of the publisher that keeps fewest; None where none tells."""
    batches: int
    batches_per_s: float | None
    """By the engine's clock, of the publisher that sends most, when it was busiest; None where that is not known."""
    blocks: dict[str, int]
    """Blocks the events named, by what became of them (`kv_blocks.COUNTED`)."""
    faults: dict[str, int]
    """What was wrong (`kv_publisher.FAULTS`)."""
    endpoints: tuple[str, ...] = ()
    """Where its events are listened to, or were when they could not be used; empty where none are known."""


def recomputed(event: Stored, seeds: Sequence[str] = (FIXED_SEED, "0")) -> Standing | None:
    """What the first blocks of a prompt prove; None for an event that proves nothing (a continuation, extra keys).

    `seeds` are the values of PYTHONHASHSEED to try, and vLLM's own.
    """
    plain = event.extra_keys is None or not any(event.extra_keys)
    if event.parent is not None or event.adapter != "" or not plain or not event.hashes:
        return None
    wanted = event.hashes[:_LOOKED_AT_BLOCKS]
    tokens = event.tokens[: len(wanted) * event.block_tokens]
    if set(map(type, tokens)) != {int}:
        return None
    for algorithm in ALGORITHMS:
        for seed in seeds:
            root, extra = root_hash(algorithm, seed), [None] * len(wanted)
            made = block_hashes(algorithm, root, tokens, event.block_tokens, extra)
            if [short(full) for full in made] == wanted:
                known = "vLLM's own seed" if seed == FIXED_SEED else f"PYTHONHASHSEED={seed}"
                return Standing(EXACT, f"block hashes are {algorithm} with {known}")
    return Standing(ALIAS, "block hashes have an unknown seed (random, or a PYTHONHASHSEED); mapped by their tokens")
