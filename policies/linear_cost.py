"""Dynamo's linear cost: weighted blocks to prefill plus blocks in decoding, with a temperature.

    prefill    (pending uncached prompt tokens + prompt tokens) / block tokens - matched blocks, not below 0
    decode     blocks of unfinished prompts there + blocks this prompt would add to them (`policies.active`)
    cost       `overlap_weight` x prefill + decode
    chance     temperature 0: least cost, equals drawn among; else exp(-(cost - least) / ((most - least) x temperature))

NVIDIA Dynamo's KV router (docs "Routing Concepts", 1.6; `lib/kv-router/src/scheduling/selector/default.rs`, commit
07a6c9c): device tier only, overlap credit 1 without decay, no request weight, its defaults. The weight was first called
`kv-overlap-score-weight`, later `router-prefill-load-scale`. Differences: decode blocks are reckoned from choices and
requests in flight, not from completions; generated tokens do not count; weights of replicas are not used.
"""

import math
import random
from collections.abc import Sequence

from policies.active import ActiveBlocks, Footprint
from policies.costs import cheapest
from policies.roster import Roster
from policies.types import Choice, Replica, Request


class LinearCost:
    """Go where weighted prefill blocks plus decode blocks are fewest.

    `overlap_weight`: what a block to prefill counts for beside one in decoding; more favours time to first token.
    `temperature`: 0 takes the cheapest, more draws by softmax over costs scaled to 0 to 1.
    """

    def __init__(self, *, overlap_weight: float = 1.0, temperature: float = 0.0, seed: int = 0) -> None:
        self._overlap_weight = overlap_weight
        self._temperature = temperature
        self._dice = random.Random(seed)
        self._active = Roster(lambda _: ActiveBlocks())

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """Reasons: `only`, `cost`, `tie`, `softmax` (drawn by temperature)."""
        active = self._active.offered([replica.name for replica in replicas])
        prompt = Footprint.of(request)
        costs = [self._cost(request, replica, blocks, prompt) for replica, blocks in zip(replicas, active, strict=True)]
        choice = self._picked(replicas, costs)
        for replica, blocks in zip(replicas, active, strict=True):
            if replica.name == choice.replica:
                blocks.sent(prompt)
        return choice

    def _picked(self, replicas: Sequence[Replica], costs: Sequence[float]) -> Choice:
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        if self._temperature > 0:
            return Choice(self._dice.choices(replicas, softmax(costs, self._temperature))[0].name, "softmax")
        chosen, drawn = cheapest(replicas, costs, self._dice)
        return Choice(chosen.name, "tie" if drawn else "cost")

    def _cost(self, request: Request, replica: Replica, active: ActiveBlocks, prompt: Footprint) -> float:
        active.keep(replica.in_flight)
        tokens = replica.pending_prefill_tokens + request.prompt_tokens
        prefill = max(0.0, tokens / request.block_tokens - replica.matched_blocks)
        return self._overlap_weight * prefill + active.with_prompt(prompt)


def softmax(costs: Sequence[float], temperature: float) -> list[float]:
    """Relative chances of choices that cost this much; 1 for the cheapest."""
    least, most = min(costs), max(costs)
    if least == most:
        return [1.0] * len(costs)
    return [math.exp(-(cost - least) / ((most - least) * temperature)) for cost in costs]
