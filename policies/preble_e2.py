"""Preble's E2: exploit a cached prefix that is longer than the rest, else explore for the least total cost.

    load       L = sum over the window's requests to a replica of uncached tokens + decode cost
    evict      M = tokens that must go for this prompt x the mean share of the window's requests that reuse a held token
    own        P = uncached tokens of this prompt
    exploit    longest match > rest of the prompt: the least L of those that match longest; but when that one has the
               greatest L of all, above `balance_ratio` x the least, the least L instead
    explore    otherwise: the least L + M + P

Srivatsa et al., "Preble" (ICLR 2025, arXiv 2407.00023), section 3.2, algorithms 1 and 2. In tokens of prefill, for the
paper's times are linear in tokens. Differences: the window is requests, not 3 minutes (a policy has no clock); output
lengths are the request's limit or `output_tokens` (45 in Preble's code); which blocks would go is unknown, so M takes
the mean over what is held, in a cache that is full unless known not to be; a prefix is not split when its queues
double, and decode-heavy replicas are not sought first: both need what a policy is not told.
"""

import random
from collections import deque
from collections.abc import Sequence

from policies.costs import cheapest, uncached_tokens
from policies.types import Choice, Replica, Request


class _Load:
    """What the window holds of one replica."""

    __slots__ = ("cached_tokens", "cost", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.cost = 0
        self.cached_tokens = 0


class PrebleE2:
    """Exploit a prefix longer than the rest of the prompt, else explore for the least load, eviction and own cost.

    `window_requests`: over how many of the fleet's last requests load is counted.
    `output_tokens`: length of an answer whose request does not limit it.
    `output_token_cost`: what a generated token counts for, in prompt tokens; the paper profiles it per GPU.
    `balance_ratio`: how much more load than the least the fullest replica may have before it loses its own prefixes.
    """

    def __init__(
        self,
        *,
        window_requests: int = 1_800,
        output_tokens: int = 45,
        output_token_cost: float = 20.0,
        balance_ratio: float = 1.5,
        seed: int = 0,
    ) -> None:
        self._window_requests = window_requests
        self._output_tokens = output_tokens
        self._output_token_cost = output_token_cost
        self._balance_ratio = balance_ratio
        self._dice = random.Random(seed)
        self._window: deque[tuple[str, int, int]] = deque()
        self._loads: dict[str, _Load] = {}

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """Reasons: `only`, `exploit`, `balance` (exploited by another than its holder), `explore`."""
        chosen, reason = self._chosen(request, replicas)
        self._entered(request, chosen)
        return Choice(chosen.name, reason)

    def _chosen(self, request: Request, replicas: Sequence[Replica]) -> tuple[Replica, str]:
        if len(replicas) == 1:
            return replicas[0], "only"
        loads = [self._load(replica).cost for replica in replicas]
        longest = max(replica.matched_blocks for replica in replicas)
        matched_tokens = longest * request.block_tokens
        if matched_tokens <= request.prompt_tokens - matched_tokens:
            costs = [self._cost(request, replica) for replica in replicas]
            return cheapest(replicas, costs, self._dice)[0], "explore"
        warm = [replica for replica in replicas if replica.matched_blocks == longest]
        chosen, _ = cheapest(warm, [self._load(replica).cost for replica in warm], self._dice)
        if self._load(chosen).cost == max(loads) > self._balance_ratio * min(loads):
            return cheapest(replicas, loads, self._dice)[0], "balance"
        return chosen, "exploit"

    def _cost(self, request: Request, replica: Replica) -> float:
        load = self._load(replica)
        own = uncached_tokens(request, replica)
        held = replica.held_blocks * request.block_tokens
        evicted = own
        if replica.capacity_blocks is not None:
            evicted = max(0, held + own - replica.capacity_blocks * request.block_tokens)
        reuse = load.cached_tokens / load.requests / held if load.requests and held else 0.0
        return load.cost + evicted * reuse + own

    def _load(self, replica: Replica) -> _Load:
        return self._loads.get(replica.name) or _Load()

    def _entered(self, request: Request, replica: Replica) -> None:
        """The request counts as load of its replica until the window has moved past it."""
        own = uncached_tokens(request, replica)
        output = self._output_tokens if request.max_output_tokens is None else request.max_output_tokens
        entry = (replica.name, own + round(output * self._output_token_cost), request.prompt_tokens - own)
        self._window.append(entry)
        self._count(entry, 1)
        if len(self._window) > self._window_requests:
            self._count(self._window.popleft(), -1)

    def _count(self, entry: tuple[str, int, int], sign: int) -> None:
        name, cost, cached_tokens = entry
        load = self._loads.setdefault(name, _Load())
        load.requests += sign
        load.cost += sign * cost
        load.cached_tokens += sign * cached_tokens
        if not load.requests:
            del self._loads[name]
