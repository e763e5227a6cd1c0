"""What block ids alone tell of traffic: a common head, where prompts part, what comes once, what replicas cost.

The one rule: ids say how much is shared and how deep, never why; for a cause the doctor needs text. The replay is the
caller's. Not here: reading recordings (`sim.traces`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

Prompts = Sequence[tuple[int, Sequence[int | bytes]]]
HitFraction = Callable[[Prompts, int], float | None]
"""Prompts and a number of replicas that take turns in; the share of prompt tokens their caches would have hit."""

REPLICAS = (1, 2, 4, 8, 16)
_HEAD_SHARE = 0.01


class Sharing(Struct, frozen=True):
    """How prompts share blocks."""

    requests: int
    prompt_tokens: int
    block_tokens: int
    head_blocks: int
    """Leading blocks of the usual prompt that stand in more than 1 % of all prompts."""
    first_block_fraction: float
    """Share of prompts that begin with the commonest first block."""
    parting_blocks: tuple[int, int, int]
    """Blocks a prompt shares with earlier ones before it parts from them: quartiles."""
    parts_at_once_fraction: float
    """Share of prompts that share not even their first block with an earlier one."""
    once_fraction: float
    """Share of distinct blocks that come once."""
    hits: tuple[tuple[int, float | None], ...]
    """Replicas that take turns, and the share of prompt tokens they would hit."""


def sharing(prompts: Prompts, block_tokens: int, hit_fraction: HitFraction) -> Sharing | None:
    """None where no prompt has a full block."""
    known = [(tokens, blocks) for tokens, blocks in prompts if len(blocks)]
    if not known:
        return None
    uses: Counter[int | bytes] = Counter()
    shared: list[int] = []
    for _, blocks in known:
        shared.append(_leading(blocks, uses))
        uses.update(blocks)
    depths = sorted(_head(blocks, uses, max(3, _HEAD_SHARE * len(known))) for _, blocks in known)
    shared_later = sorted(shared[1:]) or [0]
    firsts = Counter(blocks[0] for _, blocks in known)
    return Sharing(
        requests=len(known),
        prompt_tokens=sum(tokens for tokens, _ in known),
        block_tokens=block_tokens,
        head_blocks=depths[len(depths) // 2],
        first_block_fraction=firsts.most_common(1)[0][1] / len(known),
        parting_blocks=tuple(shared_later[len(shared_later) * part // 4] for part in (1, 2, 3)),  # type: ignore[arg-type] # three
        parts_at_once_fraction=shared_later.count(0) / len(shared_later),
        once_fraction=sum(count == 1 for count in uses.values()) / len(uses),
        hits=tuple((count, hit_fraction(known, count)) for count in REPLICAS),
    )


def _leading(blocks: Sequence[int | bytes], uses: Counter[int | bytes]) -> int:
    count = 0
    for block in blocks:
        if block not in uses:
            break
        count += 1
    return count


def _head(blocks: Sequence[int | bytes], uses: Counter[int | bytes], least: float) -> int:
    count = 0
    for block in blocks:
        if uses[block] < least:
            break
        count += 1
    return count


def document(found: Sharing) -> dict[str, Any]:
    """For machines."""
    return {
        "requests": found.requests,
        "prompt_tokens": found.prompt_tokens,
        "block_tokens": found.block_tokens,
        "head_blocks": found.head_blocks,
        "first_block_fraction": round(found.first_block_fraction, 4),
        "parting_blocks": list(found.parting_blocks),
        "parts_at_once_fraction": round(found.parts_at_once_fraction, 4),
        "once_fraction": round(found.once_fraction, 4),
        "hit_fraction_by_replicas": {str(count): fraction for count, fraction in found.hits},
    }


def lines(found: Sharing) -> Iterator[str]:
    """For people."""
    yield f"{found.requests:,} prompts of {found.prompt_tokens:,} tokens, known by block ids alone"
    yield f"common head: {found.head_blocks:,} blocks of {found.block_tokens} tokens in the usual prompt"
    yield f"{found.first_block_fraction:.0%} begin with one and the same block"
    yield f"{found.parts_at_once_fraction:.0%} share not even their first block with an earlier one"
    low, middle, high = found.parting_blocks
    yield f"prompts part from earlier ones after {low:,} / {middle:,} / {high:,} blocks (quartiles)"
    yield f"{found.once_fraction:.0%} of distinct blocks come once"
    curve = ", ".join(f"{count}: {fraction:.1%}" for count, fraction in found.hits if fraction is not None)
    yield f"hits by replicas that take turns, caches without end: {curve}"
    yield "why prompts part can't be told without text: give request bodies, or a trace that holds prompts"
