"""The rows of the book of replicas: what it says of each.

The one rule: these only hold; what a fact changes beyond its own row is `policies.fleet`'s. Not here: what is kept as
it came (`policies.flights`).
"""

from dataclasses import dataclass, field

from policies.correction import Capacity
from policies.errors import FleetError
from policies.flights import Flight, Report
from policies.types import Replica


@dataclass(slots=True)
class Entry:
    """What the book says of one replica."""

    name: str
    weight: float
    given_capacity_blocks: int | None
    capacity: Capacity
    models: frozenset[str] | None = None
    open: bool = True
    present: bool = True
    report: Report = field(default_factory=Report)
    reported_s: float | None = None
    flights: dict[str, Flight] = field(default_factory=dict)
    pending_prefill_tokens: int = 0
    capacity_blocks: int | None = None
    """What `capacity` makes of it, at hand for views."""
    limit_blocks: int | None = None
    """What the index may believe of it; less than its capacity while running requests pin what it will not find."""
    engine_block_tokens: int | None = None
    caching: bool = True
    ended_blocks: int | None = None
    """Of prompts that ended since it was asked for a report, in which they may still run; None while none is asked."""
    ended_requests: int = 0
    """How many those are."""
    others: int = 0
    """Requests it has beside ours, by its last report: of other routers, or of clients that go past this one."""
    row: Replica | None = None
    """The last row made of it, good for every view that differs in nothing; None once a fact came."""
    row_matched: int = 0
    """What stands in that row, at hand for comparing."""
    row_shared: int = 0
    row_scarce: int = 0
    row_s: float = 0.0
    """When it was made."""

    def seen(self, matched: int, shared: int, scarce: int, held: int, now_s: float) -> Replica:
        """The replica as a request sees it that finds so many of its blocks there."""
        self.row_matched, self.row_shared, self.row_scarce, self.row_s = matched, shared, scarce, now_s
        report = self.report
        self.row = row = Replica(
            self.name,
            len(self.flights) + self.others,
            self.pending_prefill_tokens,
            matched,
            shared,
            held,
            self.capacity_blocks,
            self.weight,
            report.running,
            report.waiting,
            report.kv_used_fraction,
            None if self.reported_s is None else now_s - self.reported_s,
            scarce,
        )
        return row

    def reach(self, blocks: int, block_tokens: int) -> int:
        """Of so many blocks those it can hit: whole ones of its own, where they are larger; without a cache, none."""
        if not self.caching:
            return 0
        if self.engine_block_tokens is None:
            return blocks
        tokens = blocks * block_tokens
        return (tokens - tokens % self.engine_block_tokens) // block_tokens

    def ended(self, flight: Flight) -> None:
        """A request is on its way no more."""
        self.row = None
        if self.ended_blocks is not None:
            self.ended_blocks += len(flight.request.blocks)
            self.ended_requests += 1
        if flight.prefilling:
            self.pending_prefill_tokens -= flight.uncached_tokens

    def generated_blocks(self, flight: Flight, block_tokens: int) -> tuple[int, int]:
        """What it took beyond the prompt's blocks: what it filled of it, and all. The last token is only said.

        Several answers share the prompt's blocks and no other; how long each is was not told, so all count as alike.
        """
        whole, named = self.engine_block_tokens or block_tokens, len(flight.request.blocks)
        generated, count = flight.generated
        each, longer = divmod(generated, count)
        filled = used = 0
        for tokens, answers in (each + 1, longer), (each, count - longer):
            end = flight.request.prompt_tokens + tokens - 1
            filled += answers * (end // whole * whole // block_tokens - named)
            used += answers * (-(-end // whole) * whole // block_tokens - named)
        return filled, used

    def told(self, report: Report, block_tokens: int, now_s: float) -> None:
        """It spoke. Block size and capacity do not change while it runs: silence about them changes nothing."""
        self.report = report
        self.reported_s = now_s
        self.engine_block_tokens = report.block_tokens or self.engine_block_tokens
        self.caching = self.caching if report.prefix_caching is None else report.prefix_caching
        if self.given_capacity_blocks is None and report.capacity_blocks is not None:
            own_tokens = self.engine_block_tokens or block_tokens
            self.capacity.stated_blocks = report.capacity_blocks * own_tokens // block_tokens
        if report.running is not None:
            ours = len(self.flights) + self.ended_requests
            self.others = max(0, report.running + (report.waiting or 0) - ours)
        coming = sum([len(flight.request.blocks) for flight in self.flights.values()]) + (self.ended_blocks or 0)
        self.ended_blocks, self.ended_requests = None, 0
        self.capacity.pinned(report.kv_used_fraction, coming)


def checked(name: str, weight: float) -> None:
    """Raises `FleetError` for a weight that is no speed."""
    if weight <= 0:
        raise FleetError(f"replica {name!r} has weight {weight}; a weight is a speed and must be above 0")
