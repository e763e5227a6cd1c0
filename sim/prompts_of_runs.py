"""Block keys of prompts that are said as segments: a system prompt, a tool schema, a message, an answer.

A segment is the first `tokens` tokens of a content; different contents differ in every token. The first tokens of two
prompts are then equal exactly when their segments are, so a block's key is

    run     12 bytes: BLAKE2b over the segments before the one in which the block ends, and that one's content
    place   4 bytes: the block's place in the prompt

The one rule: keys are equal exactly as far as full blocks are, also where a block lies across segments. Growing costs a
hash per segment and a concatenation per new block. Not here: what the segments are.
"""

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct

Segment = tuple[int, int]
"""A content, 0 to 2**64 - 1, and how many of its tokens."""

_RUN_BYTES = 12
_AFTER = Struct("<IQ").pack
_PLACES = [place.to_bytes(4, "little") for place in range(1 << 14)]


class Prompt:
    """A prompt so far, and the keys of its full blocks. Values: growing one gives another that shares what it had."""

    __slots__ = ("_block_tokens", "_run", "_run_tokens", "keys", "tokens")

    def __init__(self, keys: tuple[bytes, ...], tokens: int, run: bytes, run_tokens: int, block_tokens: int) -> None:
        self.keys = keys
        self.tokens = tokens
        self._run = run
        self._run_tokens = run_tokens
        self._block_tokens = block_tokens

    @classmethod
    def root(cls, block_tokens: int, salt: str = "") -> "Prompt":
        """Where every prompt of one salt begins."""
        return cls((), 0, blake2b(salt.encode(), digest_size=_RUN_BYTES).digest(), 0, block_tokens)

    def grown(self, segments: Iterable[Segment]) -> "Prompt":
        """This prompt and then these segments; empty ones are nothing."""
        run, run_tokens, tokens, block_tokens = self._run, self._run_tokens, self.tokens, self._block_tokens
        keys: list[bytes] = []
        for content, count in segments:
            if not count:
                continue
            run = blake2b(run + _AFTER(run_tokens, content), digest_size=_RUN_BYTES).digest()
            run_tokens = count
            first = tokens // block_tokens
            tokens += count
            keys += [run + place for place in _places(first, tokens // block_tokens)]
        return Prompt(self.keys + tuple(keys), tokens, run, run_tokens, block_tokens)


def _places(first: int, end: int) -> Iterable[bytes]:
    if end <= len(_PLACES):
        return _PLACES[first:end]
    return [place.to_bytes(4, "little") for place in range(first, end)]
