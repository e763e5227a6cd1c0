"""The emulator's data-parallel ranks: engines behind one port, each with a queue and a cache of its own.

The one rule: `X-data-parallel-rank` leads to a rank, as in vLLM 0.32; without it the least busy one is taken, in turn
where they are equal, which splits what could have been cached together. Not here: what an engine is (`live`).
"""

from collections.abc import Callable, Iterator, Sequence

from sim.emulator_events import Published, Telling, Untold
from sim.emulator_refusals import wrong_rank
from sim.live import LiveReplica
from sim.replica import SimReplica

RANK = "X-data-parallel-rank"


class Rank:
    """One engine, and who is told what its cache does. `stopped` counts answers that ended by themselves."""

    def __init__(self, number: int, live: LiveReplica, telling: Telling) -> None:
        self.number = number
        self.live = live
        self.telling = telling
        self.stopped = 0


class Ranks:
    """All engines of a server, at least one."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = tuple(ranks)
        self._next = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    @property
    def first(self) -> Rank:
        return self._ranks[0]

    def chosen(self, asked: str) -> Rank:
        """The one that a header asks for; what is no number asks for none. Raises `Refusal`."""
        number = asked.strip()
        if number.isdecimal():
            if int(number) >= len(self):
                raise wrong_rank(int(number), len(self))
            return self._ranks[int(number)]
        turn = self._ranks[self._next :] + self._ranks[: self._next]
        rank = min(turn, key=lambda rank: rank.live.live)
        self._next = (rank.number + 1) % len(self)
        return rank


def ranks_of(
    count: int, engine: Callable[[], SimReplica], speed: float, kv_events: int | None, kept_batches: int
) -> Ranks:
    """So many engines; their events are on ports from `kv_events` on, the replays of those behind (0: any ports)."""
    ranks = []
    for number in range(count):
        made = engine()
        telling: Telling = Untold()
        if kv_events is not None:
            telling = Published(
                made.cache.drained_events,
                made.cache.block_tokens,
                topic=f"kv@{made.name}",
                rank=number,
                port=kv_events and kv_events + number,
                replay_port=kv_events and kv_events + count + number,
                kept_batches=kept_batches,
            )
        ranks.append(Rank(number, LiveReplica(made, speed, telling.stepped), telling))
    return Ranks(ranks)
