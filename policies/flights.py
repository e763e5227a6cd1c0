"""What the book of replicas keeps as it came: what a replica says of itself, and one request on its way.

The one rule: these are values of msgspec, made for every report and every request, and stay interpreted where the core
is compiled. Not here: what they change (`policies.fleet`).
"""

from policies.types import Request
from policies.values import Loose, Value


class Report(Value, frozen=True):
    """What a replica says of itself; None is what it did not say."""

    running: int | None = None
    waiting: int | None = None
    kv_used_fraction: float | None = None
    block_tokens: int | None = None
    capacity_blocks: int | None = None
    """Usable KV blocks, counted in the replica's own `block_tokens`."""
    prefix_caching: bool | None = None


class Flight(Loose):
    """One request on its way."""

    request: Request
    replica: str
    matched_blocks: int
    uncached_tokens: int
    prefilling: bool = True
    generated: tuple[int, int] = (0, 1)
    """Tokens of all its answers together, as its replica told at the end, and how many answers those are."""
