"""The book of replicas: facts go in, views come out. Both shells, live and simulated, keep this same book.

The life of a request is `sent` → `first_token` → `done`, with `failed` or `done` allowed at any point after `sent`. A
fact that contradicts the book raises `FleetError`: a bug in the shell. Where time matters the caller passes it, in
seconds of any clock that does not go backward. Not here: health checks, sockets, choosing.
"""

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Final

from policies.agreement import agreeing_blocks
from policies.copies import Copies
from policies.correction import Capacity
from policies.entries import Entry, checked
from policies.errors import FleetError
from policies.flights import Flight
from policies.flights import Report as Report
from policies.index import PrefixIndex
from policies.keys import continued
from policies.landing import Landing
from policies.types import Replica, Request

_AGE_S: Final = 0.1  # how much older a report may have grown in a row that is used again


class Fleet:
    """Replicas, what they hold, and what is on its way to them."""

    def __init__(self, block_tokens: int = 16, *, unknown_capacity_blocks: int = 50_000) -> None:
        self.block_tokens = block_tokens
        self._unknown_capacity_blocks = unknown_capacity_blocks
        self._index = PrefixIndex(unknown_capacity_blocks=unknown_capacity_blocks)
        self.landing = Landing(self._index)
        self._entries: dict[str, Entry] = {}
        self._flights: dict[str, Flight] = {}

    def __repr__(self) -> str:
        told = ", ".join(
            f"{entry.name}{'' if entry.open else ' closed'} {len(entry.flights)} in flight"
            f" {entry.pending_prefill_tokens} pending {self._index.held_blocks(entry.name)} held"
            for entry in self._entries.values()
            if entry.present
        )
        return f"<Fleet {told or 'empty'}>"

    # -- membership ------------------------------------------------------------------------------------------------

    def joined(self, name: str, *, weight: float = 1.0, capacity_blocks: int | None = None) -> None:
        """A replica belongs to the fleet. One that left and returns finds its requests in flight still counted."""
        checked(name, weight)
        entry = self._entries.get(name)
        if entry is not None and entry.present:
            raise FleetError(f"replica {name!r} joined twice; names must differ")
        capacity = Capacity(capacity_blocks, self._unknown_capacity_blocks)
        if entry is None:
            entry = self._entries[name] = Entry(name, weight, capacity_blocks, capacity)
        else:
            entry.weight, entry.given_capacity_blocks, entry.capacity = weight, capacity_blocks, capacity
            entry.present, entry.open, entry.models, entry.caching = True, True, None, True
            entry.report, entry.reported_s, entry.engine_block_tokens, entry.others = Report(), None, None, 0
        entry.capacity_blocks = entry.limit_blocks = capacity_blocks
        entry.row = None
        self._index.joined(name, capacity_blocks)

    def left(self, name: str) -> None:
        """A replica is gone for now; requests it still serves stay in the book until they end."""
        entry = self._entry(name)
        entry.present = False
        self.landing.left(name)
        self._index.left(name)
        self._forget_if_idle(entry)

    def serves(self, name: str, models: Iterable[str] | None) -> None:
        """The models and adapters a replica serves; None while that is not known, which counts as any."""
        self._entry(name).models = None if models is None else frozenset(models)

    def models(self) -> tuple[str, ...]:
        """Every model an open replica is known to serve, sorted."""
        known = (entry.models for entry in self._entries.values() if entry.present and entry.open and entry.models)
        return tuple(sorted(frozenset().union(*known)))

    def replicas(self) -> tuple[str, ...]:
        """The replicas of the fleet, open or closed, in the order they joined."""
        return tuple(entry.name for entry in self._entries.values() if entry.present)

    def weighed(self, name: str, weight: float) -> None:
        """A replica's relative speed is another one from now on."""
        checked(name, weight)
        self._changed(name).weight = weight

    def opened(self, name: str) -> None:
        self._entry(name).open = True

    def closed(self, name: str) -> None:
        """Out of every view until `opened`; what it holds and serves stays in the book."""
        self._entry(name).open = False

    def is_open(self, name: str) -> bool:
        return self._entry(name).open

    # -- facts about a replica -------------------------------------------------------------------------------------

    def asked(self, name: str) -> None:
        """A report is on its way. It was made before it comes: what ends meanwhile may be running in it."""
        entry = self._entry(name)
        entry.ended_blocks = entry.ended_requests = 0

    def reported(self, name: str, report: Report, now_s: float) -> None:
        """A replica spoke of itself."""
        self._changed(name).told(report, self.block_tokens, now_s)
        self._sized(self._entries[name])

    def stored(self, name: str, keys: Sequence[bytes], parent: bytes | None = None) -> None:
        """By its events, the replica stored these blocks after `parent`. From now on its word is its match."""
        self._index.stored(self._changed(name).name, keys, parent)
        self.landing.told(name)

    def telling(self, name: str) -> Copies:
        """What the replica told by events, to enter many blocks at once; good until the next fact. `told` ends it."""
        return self._index.telling(self._changed(name).name)

    def told(self, name: str) -> None:
        """What was entered by `telling` is all the replica told at once."""
        self.landing.told(name)

    def tells(self, name: str) -> bool:
        """Whether the replica tells by events what it holds."""
        return self._index.copies(name) is not None

    def removed(self, name: str, keys: Iterable[bytes]) -> None:
        """By its events, the replica gave up a copy of each of these blocks."""
        self._index.removed(self._changed(name).name, keys)

    def cleared(self, name: str) -> None:
        """The replica's cache is empty: it restarted, or was reset."""
        self._index.cleared(self._changed(name).name)

    def lost(self, name: str, firsts: Collection[bytes]) -> None:
        """The replica holds no prompt any more that begins with one of these blocks, by what was sent to it."""
        self._index.lost(self._changed(name).name, firsts)

    def untold(self, name: str) -> None:
        """The replica's events can't be followed any more: what they told no longer counts, what was sent does."""
        self._index.untold(self._changed(name).name)

    # -- facts about a request -------------------------------------------------------------------------------------

    def sent(self, request: Request, name: str) -> None:
        """The request is on its way: it counts as load, and its blocks as held, from this moment.

        A burst of equal prompts must meet where the first one went, long before any engine could tell.
        """
        entry = self._changed(name)
        if request.id in self._flights:
            raise FleetError(f"request {request.id!r} was sent twice")
        matched = entry.reach(self._index.matched(request.blocks).get(name, 0), self.block_tokens)
        uncached = max(0, request.prompt_tokens - matched * request.block_tokens)
        flight = Flight(request, name, matched, uncached)
        self._flights[request.id] = entry.flights[request.id] = flight
        entry.pending_prefill_tokens += uncached
        self._index.recorded(name, request.blocks, expected=True)

    def first_token(self, request: Request) -> None:
        """The prefill is over. Told at most once."""
        flight = self._flight(request)
        if not flight.prefilling:
            raise FleetError(f"request {request.id!r} had its first token twice")
        flight.prefilling = False
        entry = self._entries[flight.replica]
        entry.pending_prefill_tokens -= flight.uncached_tokens
        entry.row = None
        if entry.present:
            self.landing.computed(flight.replica, request.blocks, entry.reach(len(request.blocks), self.block_tokens))

    def delivered(self, request: Request, cached_tokens: int) -> None:
        """The replica told how many of the prompt's tokens it found cached. Told before `done`, at most once.

        Less than was predicted: what continued the lost part is withdrawn, and the replica's capacity is fitted. More:
        nothing is made up. Where the replica tells by events what it holds, there is nothing to correct.
        """
        flight = self._flight(request)
        entry = self._entries[flight.replica]
        if not entry.present or not entry.caching or self._index.copies(entry.name) is not None:
            return
        predicted, blocks = flight.matched_blocks, request.blocks
        delivered = min(len(blocks), cached_tokens // request.block_tokens)
        if delivered < predicted:
            self._index.missed(entry.name, blocks, delivered)
        given_up = delivered > predicted and self._index.gave_up(entry.name, blocks[predicted])
        if entry.capacity.told(predicted, delivered, given_up=given_up):
            self._sized(entry)

    def generated(self, request: Request, tokens: int, answers: int = 1) -> None:
        """The replica told how many tokens all its answers to this one prompt have. Told before `done`."""
        self._flight(request).generated = tokens, answers

    def done(self, request: Request, output_blocks: Sequence[bytes] = ()) -> None:
        """The request ended, or its client left: what was computed stays cached.

        `output_blocks` are the keys that continue the request's own blocks. What else it generated takes room.
        """
        flight = self._ended(request)
        entry = self._entries[flight.replica]
        if entry.present and flight.generated[0]:
            nameless, used = entry.generated_blocks(flight, self.block_tokens)
            nameless -= len(output_blocks)
            self._index.filled(entry.name, request.blocks, nameless, used - nameless)
        if entry.present and output_blocks:
            self._index.recorded(flight.replica, continued(request.blocks, output_blocks))
        elif entry.present and flight.prefilling:
            self._index.computed(flight.replica, request.blocks)
        self._forget_if_idle(entry)

    def answered(self, name: str, request: Request, output_blocks: Sequence[bytes]) -> None:
        """The answer of a request that is done, known later than that."""
        if output_blocks and name in self.replicas():
            self._index.recorded(self._changed(name).name, continued(request.blocks, output_blocks))

    def failed(self, request: Request) -> None:
        """It did not serve the request: blocks it has not computed, and that nobody else brings, are withdrawn."""
        flight = self._ended(request)
        entry = self._entries[flight.replica]
        if entry.present and flight.prefilling:
            coming = (other.request.blocks for other in entry.flights.values() if other.prefilling)
            kept = max((agreeing_blocks(request.blocks, blocks) for blocks in coming), default=0)
            self._index.withdrawn(flight.replica, request.blocks, kept)
        self._forget_if_idle(entry)

    # -- views -----------------------------------------------------------------------------------------------------

    def view(self, request: Request, now_s: float, without: Container[str] = ()) -> tuple[Replica, ...]:
        """The replicas that may be chosen, as this request sees them; empty when there is none."""
        if self.landing:
            self.landing.looked(now_s)
        matched, shared, scarce = self._index.found(request.blocks)
        model = request.model
        rows: list[Replica] = []
        for name, entry in self._entries.items():
            if not (entry.open and entry.present) or (without and name in without):
                continue
            if entry.models is not None and model and model not in entry.models:
                continue
            reach = matched.get(name, 0)
            if reach:
                reach = entry.reach(reach, self.block_tokens)
            row = entry.row
            if (
                row is None
                or entry.row_matched != reach
                or entry.row_shared != shared
                or entry.row_scarce != scarce
                or (entry.reported_s is not None and now_s - entry.row_s > _AGE_S)
            ):
                row = entry.seen(reach, shared, scarce, self._index.held_blocks(name), now_s)
            rows.append(row)
        return tuple(rows)

    def warmest(self, request: Request, view: Sequence[Replica]) -> int:
        """The longest match of the replicas that serve a request, open or closed, but are not in its view."""
        if len(view) == len(self._entries) or not request.blocks:
            return 0
        shown = {replica.name for replica in view}
        matched = self._index.matched(request.blocks)
        reaches = [
            entry.reach(matched.get(entry.name, 0), self.block_tokens)
            for entry in self._entries.values()
            if entry.name not in shown and entry.present and (entry.models is None or request.model in entry.models)
        ]
        return max(reaches, default=0)

    def load(self, name: str) -> tuple[int, int]:
        """Requests in flight and uncached prompt tokens pending on one replica."""
        entry = self._entry(name)
        return len(entry.flights), entry.pending_prefill_tokens

    def remaining(self, name: str) -> int:
        """Requests still counted on a replica that may have left; 0 for one that nobody knows any more."""
        entry = self._entries.get(name)
        return 0 if entry is None else len(entry.flights)

    def held_blocks(self, name: str) -> int:
        return self._index.held_blocks(name)

    def effective_blocks(self, name: str) -> int | None:
        """What is believed to stay cached on a replica; None while it is neither stated nor fitted."""
        return self._entry(name).capacity_blocks

    @property
    def index_runs(self) -> int:
        return self._index.runs

    # -- the book --------------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None or not entry.present:
            raise FleetError(f"the fleet knows no replica {name!r}")
        return entry

    def _changed(self, name: str) -> Entry:
        entry = self._entry(name)
        entry.row = None
        return entry

    def _sized(self, entry: Entry) -> None:
        """What is believed of a replica's capacity may have changed."""
        entry.capacity_blocks, entry.row = entry.capacity.blocks, None
        limit = entry.capacity.limit_blocks
        if limit != entry.limit_blocks:
            entry.limit_blocks = limit
            self._index.resized(entry.name, limit)

    def _flight(self, request: Request) -> Flight:
        try:
            return self._flights[request.id]
        except KeyError:
            raise FleetError(f"request {request.id!r} is not on its way") from None

    def _ended(self, request: Request) -> Flight:
        flight = self._flight(request)
        entry = self._entries[flight.replica]
        del self._flights[request.id], entry.flights[request.id]
        entry.ended(flight)
        return flight

    def _forget_if_idle(self, entry: Entry) -> None:
        if not entry.present and not entry.flights:
            del self._entries[entry.name]
