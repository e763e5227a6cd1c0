"""What the book of replicas keeps as it came: what a replica says of itself, and one request on its way.

The one rule: these only hold what came. Not here: what they change (`policies.fleet`).
"""

from policies.types import Request
from policies.values import Value


class Report(Value, frozen=True):
    """What a replica says of itself; None is what it did not say."""

    running: int | None = None
    waiting: int | None = None
    kv_used_fraction: float | None = None
    block_tokens: int | None = None
    capacity_blocks: int | None = None
    """Usable KV blocks, counted in the replica's own `block_tokens`."""
    prefix_caching: bool | None = None


class Flight:
    """One request on its way; a class of its own and no struct, since compiled code reads it for every request."""

    __slots__ = ("generated", "matched_blocks", "prefilling", "replica", "request", "uncached_tokens")

    def __init__(self, request: Request, replica: str, matched_blocks: int, uncached_tokens: int) -> None:
        self.request = request
        self.replica = replica
        self.matched_blocks = matched_blocks
        self.uncached_tokens = uncached_tokens
        self.prefilling = True
        self.generated = (0, 1)
        """Tokens of all its answers together, as its replica told at the end, and how many answers those are."""

    def __repr__(self) -> str:
        return f"<Flight of {self.request.id} to {self.replica}>"
