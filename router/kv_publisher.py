"""One publisher's batches, in order, become what its engine holds.

The one rule: nothing here waits. Work is yielded in pieces well under a millisecond, and whoever drives it lets the
event loop run in between. What is missing is said (`degraded`), not repaired here; what makes the events unusable is
`broken`. Not here: sockets (`kv_feed`), and several publishers of one replica (`kv_events`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from policies.blocks import Chain
from policies.fleet import Fleet
from router.kv_blocks import BlockSizeError, EngineBlocks
from router.kv_pace import Pace
from router.kv_sequence import Sequence, Turn
from router.kv_standing import Standing, recomputed
from router.kv_wire import Batch, Event, Removed, Stored, Unusable, WireError, batch, event

_UNREADABLE_IN_A_ROW: Final = 10

FAULTS: Final = (
    "unreadable",
    "foreign",
    "malformed",
    "unknown",
    "duplicate",
    "missed",
    "restart",
    "replay_failed",
    "unfounded",
    "refused",
    "disconnected",
    "unreachable",
    "unusable",
    "silent",
    "strange",
)
"""What may be wrong with batches, events and whoever sends them; a closed set."""


class Publisher:
    """The events of one data-parallel rank of one replica."""

    def __init__(
        self, fleet: Fleet, name: str, *, root: Callable[[str, str], Chain], alone: bool, seeds: tuple[str, ...] = ()
    ) -> None:
        """`alone`: the replica has no other rank, so that what empties this one empties the replica."""
        self.faults: Counter[str] = Counter()
        self.degraded = ""
        """What is missing, until the engine is known to be empty; empty while nothing is."""
        self.broken = ""
        """Why the events can't be used at all; the text completes `replica r1 …`."""
        self.standing: Standing | None = None
        """What the first events proved; None before any."""
        self.heard = 0
        self._fleet = fleet
        self._name = name
        self._alone = alone
        self._seeds = seeds
        self._unreadable = 0
        self.sequence = Sequence()
        self.pace = Pace()
        self.blocks = EngineBlocks(
            block_tokens=fleet.block_tokens,
            root=root,
            stored=lambda keys, before: fleet.stored(name, keys, before),
            removed=lambda keys: fleet.removed(name, keys),
            told=lambda: fleet.telling(name),
        )

    def __repr__(self) -> str:
        return f"<Publisher of {self._name} {self.sequence!r} {self.blocks!r}>"

    def turn(self, number: int, payload: bytes) -> Turn:
        return self.sequence.turn(number, payload)

    def take(self, number: int, payload: bytes) -> Iterator[None]:
        """The next batch, or one after batches that were given up."""
        missed = number - self.sequence.next
        if missed > 0:
            self.faults["missed"] += missed
            self.degraded = self.degraded or f"{missed} batches before number {number} could not be had"
        self.sequence.took(number, payload)
        self.heard += 1
        try:
            found = batch(payload)
        except WireError as error:
            self.faults["unreadable"] += 1
            self._unreadable += 1
            self.degraded = self.degraded or f"batch {number} could not be read ({error})"
            if self._unreadable >= _UNREADABLE_IN_A_ROW:
                self.faults["unusable"] += 1
                self.broken = self.broken or f"sends events that can't be read ({error})"
            return
        self._unreadable = 0
        self.pace.took(number, found.at_s)
        yield from self._taken(found)

    def _taken(self, found: Batch) -> Iterator[None]:
        for items in found.slices():
            at = 0
            while True:
                at = self.blocks.straight(items, at)
                if at == len(items):
                    break
                yield from self._one(event(items[at]))
                if self.broken:
                    return
                at += 1
            yield
        self._fleet.told(self._name)

    def _one(self, told: Event) -> Iterator[None]:
        if type(told) is Removed:
            self.blocks.removed(told)
        elif type(told) is Stored:
            if self.standing is None:
                self.standing = recomputed(told, self._seeds)
            try:
                yield from self.blocks.stored(told)
            except BlockSizeError as error:
                self.faults["unusable"] += 1
                self.broken = self.broken or str(error)
        elif type(told) is Unusable:
            self.faults[told.reason] += 1
        else:
            yield from self.emptied()
        yield

    def emptied(self) -> Iterator[None]:
        """The engine holds nothing, which makes good whatever was missed."""
        self.degraded = ""
        if self._alone:
            self._fleet.cleared(self._name)
            self.blocks.cleared()
        else:
            yield from self.blocks.forgotten()

    def disbelieved(self) -> Iterator[None]:
        """The engine has nothing of what it told: an event is missing that nobody can ask for."""
        self.faults["unfounded"] += 1
        yield from self.emptied()
        self.degraded = "its engine found nothing of what its events had told"

    def reloaded(self, adapter: str) -> Iterator[None]:
        """An adapter was loaded from elsewhere under the name it had."""
        yield from self.blocks.reloaded(adapter)

    def restarted(self) -> Iterator[None]:
        """A new process publishes: it counts from 0 and holds nothing yet."""
        self.faults["restart"] += 1
        yield from self.begun_again()

    def begun_again(self) -> Iterator[None]:
        """Forget the numbers and the blocks, to read all that can still be had."""
        self.sequence.restarted()
        self.broken, self.standing, self._unreadable = "", None, 0
        yield from self.emptied()
