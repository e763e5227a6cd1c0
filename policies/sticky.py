"""llm-d's sticky until saturated: warm replicas only, until the best of them is too far behind the best cold one.

    warm     matched blocks / blocks of the prompt >= `affinity_threshold`
    open     some are warm, but the least pending prefill among them exceeds the least among the others by more than
             `max_ttft_penalty_s` x `peak_prefill_tokens_per_s`: then every replica may be chosen
    load     of those left: pending + own uncached tokens (`tokens`), or requests in flight (`requests`)

`prefix-cache-affinity-filter`, then `token-load-scorer` or `active-request-scorer`, then the max-score picker of
llm-d-router (commit 066c20e; llm-d blog, "Sticky Until Saturated", 2026-08), with its defaults: 15,928 tokens/s is
Qwen3-32B on two H100, measure your own. Equals are drawn among, as its picker does. Differences: a request's tokens
count here until its first token comes; a prompt that was not tokenized has no warm replica; the token score's cap of
4,194,304 tokens is left out.
"""

import random
from collections.abc import Sequence
from typing import Literal

from policies.costs import backlog_tokens, cheapest
from policies.types import Choice, Replica, Request


class StickyUntilSaturated:
    """Stay on warm replicas until waiting there costs too much more than elsewhere, then go by load.

    `affinity_threshold`: share of the prompt's blocks that makes a replica warm; 0 turns the gate off.
    `max_ttft_penalty_s`: how much longer a warm replica may keep one waiting; 0 is for ever.
    `peak_prefill_tokens_per_s`: what turns pending tokens into seconds.
    `exploration_probability`: how often the gate is skipped.
    `load`: what decides among those left: tokens to compute, or requests in flight for decode-bound traffic.
    """

    def __init__(
        self,
        *,
        affinity_threshold: float = 0.8,
        max_ttft_penalty_s: float = 18.0,
        peak_prefill_tokens_per_s: float = 15_928.0,
        exploration_probability: float = 0.0,
        load: Literal["tokens", "requests"] = "tokens",
        seed: int = 0,
    ) -> None:
        self._affinity_threshold = affinity_threshold
        self._most_behind_tokens = max_ttft_penalty_s * peak_prefill_tokens_per_s
        self._exploration_probability = exploration_probability
        self._by_tokens = load == "tokens"
        self._dice = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """Reasons: `only`, `explore`, `sticky`, `cold` (none is warm), `saturated` (the gate is open)."""
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        kept, reason = self._gated(request, replicas)
        loads = [backlog_tokens(request, one) if self._by_tokens else one.in_flight for one in kept]
        chosen, _ = cheapest(kept, loads, self._dice)
        return Choice(chosen.name, reason)

    def _gated(self, request: Request, replicas: Sequence[Replica]) -> tuple[Sequence[Replica], str]:
        if self._exploration_probability and self._dice.random() < self._exploration_probability:
            return replicas, "explore"
        if not request.blocks or self._affinity_threshold <= 0:
            return replicas, "cold"
        total = len(request.blocks)
        warm = [replica for replica in replicas if replica.matched_blocks / total >= self._affinity_threshold]
        if not warm:
            return replicas, "cold"
        cold = [replica for replica in replicas if replica.matched_blocks / total < self._affinity_threshold]
        if cold and self._most_behind_tokens and _least(warm) - _least(cold) > self._most_behind_tokens:
            return replicas, "saturated"
        return warm, "sticky"


def _least(replicas: Sequence[Replica]) -> int:
    return min(replica.pending_prefill_tokens for replica in replicas)
