"""What a request would cost on each replica, for `prefix_aware`, whose formula this is: loops, made to be compiled.

The one rule: no look at anything but the values given, for it runs for every replica of every request.
Not here: why the terms are what they are (`prefix_aware` says so beside the formula).
"""

# ruff: noqa: FURB136 -- max() and min() cost more than what they compare, for every replica of every request

import random
from collections.abc import Sequence
from math import inf
from typing import Final

from policies.costs import cheapest
from policies.types import Choice, Replica, Request

_RECOMPUTED: Final = 2.0  # a token computed anew also delays those behind it; 1 to 3 are alike, with 5 the warm crowd
_MOST_PINNED: Final = 0.9
_FULL: Final = 2.0  # in a full cache it evicts, too; 1 to 3 are alike
_QUEUE: Final = 2.0  # without it prompts leave warm replicas when all have queues; with 1 the longest wait for others
_CROWD: Final = 32.0  # with less short prompts wait behind long ones when all have queues, with 48 the longest for all
_LONG_TOKENS: Final = 32_768.0  # of a queue, of a prompt: four steps of vLLM's; half and twice as much are alike
_LEAST_FULLNESS: Final = 0.02  # an empty cache still computes the head once; any value up to 0.1 measured the same
_UNKNOWN_FULLNESS: Final = 0.5  # for shared heads on a replica of unknown size; with .16 they get needless copies


def costs(
    request: Request, replicas: Sequence[Replica], in_flight_tokens: float, stickiness: float | None
) -> list[float]:
    """The cost of each replica, in prompt tokens of a replica of weight 1. `stickiness` is k; None lets it follow."""
    block_tokens, prompt_tokens = request.block_tokens, request.prompt_tokens
    shared = replicas[0].shared_blocks * block_tokens
    scarce = replicas[0].scarce_blocks * block_tokens
    least, crowded = inf, len(replicas)
    for replica in replicas:
        crowded += replica.in_flight
        pending = replica.pending_prefill_tokens / replica.weight
        if pending < least:
            least = pending
    crowd = (1.0 + _CROWD * least / (least + _LONG_TOKENS)) * _LONG_TOKENS * (len(replicas) / crowded)
    whole = float(prompt_tokens)
    queue = _QUEUE / (prompt_tokens or 1)
    found: list[float] = []
    for replica in replicas:
        in_flight = replica.in_flight
        matched = replica.matched_blocks * block_tokens
        capacity = replica.capacity_blocks
        if not capacity:
            full, room = 1.0, _UNKNOWN_FULLNESS
        else:
            held = replica.held_blocks
            full = held / capacity if held < capacity else 1.0
            room = full if full > _LEAST_FULLNESS else _LEAST_FULLNESS
        uncached = whole - (matched if matched > shared else shared)
        here = matched if matched > scarce else scarce
        if here < shared:
            uncached += room * (shared - here)
        pinned = replica.engine_kv_used_fraction
        if stickiness is not None:
            k = stickiness
        elif not pinned:
            k = _RECOMPUTED + 1.0
        else:
            k = _RECOMPUTED + 1.0 / (1.0 - (pinned if pinned < _MOST_PINNED else _MOST_PINNED))
        waiting = replica.pending_prefill_tokens + in_flight_tokens * in_flight
        price = k + _FULL * full + queue * waiting + crowd * (in_flight + 1) / (_LONG_TOKENS + uncached)
        found.append((waiting + price * uncached) / replica.weight)
    return found


def choice_by(costs: Sequence[float], replicas: Sequence[Replica], dice: random.Random) -> Choice:
    """The cheapest replica, and whether the prefix, load alone, or `dice` decided."""
    chosen, drawn = cheapest(replicas, costs, dice)
    if is_warmest(chosen, replicas):
        return Choice(chosen.name, "prefix")
    return Choice(chosen.name, "tie" if drawn else "load")


def is_warmest(chosen: Replica, replicas: Sequence[Replica]) -> bool:
    """Whether none of them has more of the prompt than the chosen one, and some have less."""
    matched, colder = chosen.matched_blocks, False
    for replica in replicas:
        other = replica.matched_blocks
        if other > matched:
            return False
        if other < matched:
            colder = True
    return colder
