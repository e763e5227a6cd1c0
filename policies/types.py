"""The nouns a policy sees: a request, the replicas as that request sees them, and the choice.

The one rule: these are values. A policy gets nothing else, so a choice can be explained, replayed and simulated.
Not here: how the values are made (`policies.fleet`) and how bytes become blocks (`policies.blocks`).
"""

from collections.abc import Sequence
from typing import Protocol

from policies.values import Value


class Request(Value, frozen=True):
    """One request, as far as placing it needs to know."""

    id: str
    route: str
    """The path the client called, such as `/v1/chat/completions`."""
    model: str
    """The served model or adapter name the client asked for."""
    tenant: str
    """Who pays; the empty string when the fleet has one tenant."""
    user: str | None
    session: str | None
    prompt_tokens: int
    """Length of the prompt; estimated from its bytes when it could not be tokenized (`blocks` is empty then)."""
    max_output_tokens: int | None
    blocks: Sequence[bytes]
    """Chained keys of the prompt's full blocks that may hit: at most `(prompt_tokens - 1) // block_tokens` of them."""
    block_tokens: int


class Replica(Value, frozen=True):
    """One replica as one request sees it. `None` means unknown, never 0."""

    name: str
    in_flight: int
    """Requests sent and not yet done, and others' (another router's) as far as the replica's last report tells."""
    pending_prefill_tokens: int
    """Uncached prompt tokens of requests sent whose first token has not come yet."""
    matched_blocks: int
    """Leading blocks of this request that are probably in this replica's cache."""
    shared_blocks: int
    """Leading blocks of the request that many different prompts continue: the same for every replica."""
    held_blocks: int
    """Blocks the index believes this replica holds."""
    capacity_blocks: int | None
    weight: float
    """Relative speed: 2.0 prefills twice as fast as 1.0."""
    engine_running: int | None = None
    engine_waiting: int | None = None
    engine_kv_used_fraction: float | None = None
    """Share of the KV pool pinned by running requests, 0 to 1."""
    report_age_s: float | None = None
    """Seconds since the replica reported the `engine_*` values, to a tenth of a second."""
    scarce_blocks: int = 0
    """Those of `shared_blocks` that fewer replicas hold than their share of all prompts deserves."""


class Choice(Value, frozen=True):
    """Where a request goes, and the short constant word that says why: a metric label and a column of `explain`."""

    replica: str
    reason: str


class Policy(Protocol):
    """What a policy is. A plug-in needs no import of ours: any object with this method will do.

    `choose` may also return just the replica's name. A policy that looks at nothing that follows from the prompt
    (matches, pending tokens) says so by `uses_prefixes = False`; then prompts need not be tokenized for it.
    """

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
        """Pick one of `replicas`: never empty, only replicas that may be chosen, in configured order."""
        ...
