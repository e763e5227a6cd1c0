"""LMetric: prompt tokens to compute times requests to compute with; a product has no weights to tune.

    score    (pending uncached prompt tokens + uncached tokens of this prompt) x (requests in flight + 1)

Zhang et al., "LMetric: Simple is Better - Multiplication May Be All You Need for LLM Request Scheduling" (OSDI 2026,
arXiv 2603.15202): new prefill tokens, those that queue included, times batch size. The + 1 is the request itself, as in
AIBrix (`l_metric_local.go`), llm-d (`lmetric-scorer`) and vllm-router's `kv_aware` at temperature 0; without it every
idle replica scores 0. Equals are drawn among, as AIBrix does. Differences: the batch is what this router has in flight,
not the engine's report, and a replica's weight is not used, for the paper knows equal instances.
The paper's own warning: it dilutes affinity when a prefix class has a larger share of requests than of instances.
"""

import random
from collections.abc import Sequence

from policies.costs import backlog_tokens, cheapest
from policies.types import Choice, Replica, Request


class LMetric:
    """Go where prompt tokens to compute times requests in flight is least; no setting to tune."""

    def __init__(self, *, seed: int = 0) -> None:
        self._dice = random.Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        if len(replicas) == 1:
            return Choice(replicas[0].name, "only")
        chosen, drawn = cheapest(replicas, [_score(request, replica) for replica in replicas], self._dice)
        return Choice(chosen.name, "tie" if drawn else "score")

    def explained(self, request: Request, replicas: Sequence[Replica]) -> dict[str, float]:
        """Each replica's score, in tokens times requests."""
        return {replica.name: _score(request, replica) for replica in replicas}


def _score(request: Request, replica: Replica) -> float:
    return float(backlog_tokens(request, replica) * (replica.in_flight + 1))
