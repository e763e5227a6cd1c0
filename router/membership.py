"""Which replicas belong to the router while it serves: they join, start slowly, drain and leave.

Whoever knows of replicas (the configuration, DNS, a file, an operator; some day Kubernetes) says with `wanted` which
ones it knows now. The one rule: a replica is its URL: it stays, under the name it has, as long as anybody wants it, and
nothing that runs is dropped before its time is up. Not here: where replicas are found (`discovery`, `reload`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass

from policies.fleet import Fleet
from router.errors import BadRequest, NotServed
from router.health import Watcher
from router.http.upstream import Upstream
from router.kv_events import KvEvents
from router.kv_sources import OFF
from router.sections import ReplicaAddress

_log = logging.getLogger("router.membership")

JOINED, DRAINING = "joined", "draining"
OPERATOR = "operator"
"""Who wants the replicas that `added` brought."""

_FIRST_SHARE = 0.1  # of its weight, for a replica that has just joined
_LOOK_AGAIN_S = 0.05
_LETTING_GO_S = 2.0  # what was broken off has so long to be booked


@dataclass(frozen=True, slots=True)
class Member:
    """One replica as `GET /admin/replicas` shows it."""

    name: str
    url: str
    state: str
    """`joined` or `draining`."""
    wanted_by: tuple[str, ...]
    weight: float
    """As the view has it now: a replica that starts slowly has less than its own."""
    in_flight: int


@dataclass(slots=True)
class _Joined:
    """A replica that belongs to the fleet."""

    address: ReplicaAddress
    began_s: float | None = None
    """When it was first usable; None while it was not."""
    weight: float = 0.0


@dataclass(slots=True)
class _Leaving:
    """A replica that gets nothing new."""

    name: str
    address: ReplicaAddress
    upstream: Upstream
    task: asyncio.Task[None] | None = None


class Membership:
    """The replicas of one router, inside `async with`."""

    def __init__(
        self,
        fleet: Fleet,
        watcher: Watcher,
        events: KvEvents,
        upstreams: MutableMapping[str, Upstream],
        *,
        way: Callable[[ReplicaAddress], Upstream],
        clock: Callable[[], float],
        kv_events: str = OFF,
        slow_start_s: float = 0.0,
        drain_s: float = 30.0,
        gone: Iterable[Callable[[str], None]] = (),
    ) -> None:
        """`way` makes the data plane's way to a replica; `gone` are told the name of each that has left for good."""
        self._fleet = fleet
        self._watcher = watcher
        self._events = events
        self._upstreams = upstreams
        self._way = way
        self._clock = clock
        self._kv_events = kv_events
        self.slow_start_s = slow_start_s
        self.drain_s = drain_s
        self._gone = tuple(gone)
        self._sources: dict[str, tuple[ReplicaAddress, ...]] = {}
        self._barred: set[str] = set()
        """URLs an operator took out: nobody but an operator brings them back."""
        self._joined: dict[str, _Joined] = {}
        self._leaving: list[_Leaving] = []
        self._changing = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        going = ", ".join(one.name for one in self._leaving)
        return f"<Membership {', '.join(self._joined) or 'nobody'}{'; draining ' + going if going else ''}>"

    async def __aenter__(self) -> "Membership":
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._warming, *(one.task for one in self._leaving)) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for upstream in (*self._upstreams.values(), *(one.upstream for one in self._leaving)):
            upstream.close()

    # -- what is wanted --------------------------------------------------------------------------------------------

    def started(self, source: str, replicas: Iterable[ReplicaAddress]) -> None:
        """The replicas there are when the router starts: all join alike, so none of them starts slowly."""
        self._sources[source] = tuple(replicas)
        for address in self._wanted().values():
            self._join(address, slowly=False)

    async def wanted(self, source: str, replicas: Iterable[ReplicaAddress]) -> None:
        """All replicas that `source` knows now. What it no longer names drains, unless somebody else wants it."""
        self._sources[source] = tuple(replicas)
        async with self._changing:
            await self._settled()

    async def added(self, address: ReplicaAddress) -> str:
        """An operator wants this replica; its name. Raises `BadRequest` for a name that another one has."""
        held = self._joined.get(address.name)
        if held is not None and held.address.url != address.url:
            raise BadRequest(f"replica {address.name!r} is {held.address.url}; give this one another name")
        self._barred.discard(address.url)
        self._sources[OPERATOR] = (*self._operators(without=address.url), address)
        async with self._changing:
            await self._settled()
            return next(name for name, one in self._joined.items() if one.address.url == address.url)

    async def drained(self, name: str) -> None:
        """An operator wants the replica to get nothing new, and to leave when what it serves has ended."""
        await self._taken_out(name, self.drain_s)

    async def removed(self, name: str) -> None:
        """An operator wants it gone now: what it serves is broken off."""
        await self._taken_out(name, 0.0)

    async def _taken_out(self, name: str, within_s: float) -> None:
        """Raises `NotServed` for a name nobody has."""
        async with self._changing:
            held = self._joined.get(name)
            going = [one for one in self._leaving if one.name == name]
            if held is None and not going:
                raise NotServed(f"no replica is named {name[:64]!r}; GET /admin/replicas lists them")
            if held is not None:
                self._barred.add(held.address.url)
                self._sources[OPERATOR] = self._operators(without=held.address.url)
                await self._leave(name, within_s)
            elif within_s == 0.0:
                for one in going:
                    self._let_go(one, within_s)

    def _operators(self, *, without: str) -> tuple[ReplicaAddress, ...]:
        return tuple(one for one in self._sources.get(OPERATOR, ()) if one.url != without)

    def members(self) -> tuple[Member, ...]:
        """All replicas, those that are leaving last."""
        fleet = self._fleet
        rows = [
            Member(name, one.address.url, JOINED, self._wanting(one.address.url), one.weight, fleet.remaining(name))
            for name, one in self._joined.items()
        ]
        going = [one for one in self._leaving if one.name not in self._joined]
        return (
            *rows,
            *(Member(one.name, one.address.url, DRAINING, (), 0.0, fleet.remaining(one.name)) for one in going),
        )

    def address(self, name: str) -> ReplicaAddress | None:
        """What was written of a replica; None for one that does not belong to the fleet."""
        held = self._joined.get(name)
        return None if held is None else held.address

    def _wanted(self) -> dict[str, ReplicaAddress]:
        """Every replica somebody wants, by URL; who named it first decides what it is called."""
        found: dict[str, ReplicaAddress] = {}
        for replicas in self._sources.values():
            for address in replicas:
                if address.url not in self._barred:
                    found.setdefault(address.url, address)
        return found

    def _wanting(self, url: str) -> tuple[str, ...]:
        return tuple(source for source, known in self._sources.items() if any(one.url == url for one in known))

    async def _settled(self) -> None:
        """Bring the fleet to what is wanted."""
        wanted = self._wanted()
        for name, held in list(self._joined.items()):
            address = wanted.pop(held.address.url, None)
            if address is None:
                await self._leave(name, self.drain_s)
            elif _differs(address, held.address):
                await self._leave(name, self.drain_s)
                self._join(address.model_copy(update={"name": name}), slowly=False)
            elif address.weight != held.address.weight:
                held.address = held.address.model_copy(update={"weight": address.weight})
                self._weigh(name, held, self._clock())
        for address in wanted.values():
            self._join(address, slowly=True)

    # -- one replica -----------------------------------------------------------------------------------------------

    def _join(self, address: ReplicaAddress, *, slowly: bool) -> None:
        name = address.name
        if name in self._joined:  # two sources gave one name to different replicas
            name = address.url.partition("://")[2].replace("[", "").replace("]", "")
            address = address.model_copy(update={"name": name})
        held = self._joined[name] = _Joined(address)
        if not slowly:
            held.began_s = float("-inf")
        self._upstreams[name] = self._returned(address) or self._way(address)
        held.weight = self._weight(held, self._clock())
        self._fleet.joined(name, weight=held.weight, capacity_blocks=address.capacity_blocks)
        self._watcher.watch(name, address.url)
        self._events.follow(name, address.url, address.kv_events or self._kv_events)
        if slowly:
            _log.info("replica %s (%s) joins", name, address.url)
            self._warm()

    async def _leave(self, name: str, within_s: float) -> None:
        """No new requests from this moment; what runs has `within_s` to end."""
        held = self._joined.pop(name)
        self._fleet.closed(name)
        _log.info("replica %s (%s) leaves; %d requests run", name, held.address.url, self._fleet.remaining(name))
        await self._events.unfollow(name)  # first: who follows asks the watcher of its model
        await self._watcher.unwatch(name)
        self._fleet.left(name)
        going = _Leaving(name, held.address, self._upstreams.pop(name))
        self._leaving.append(going)
        self._let_go(going, within_s)

    def _let_go(self, going: _Leaving, within_s: float) -> None:
        if going.task is not None:
            going.task.cancel()
        going.task = asyncio.create_task(self._ended(going, within_s), name=f"{going.name} leaves")

    def _returned(self, address: ReplicaAddress) -> Upstream | None:
        """The way to a replica that has not left yet, if it would be made alike: what runs on it goes on."""
        for going in self._leaving:
            if _way_of(going.address) == _way_of(address) and going.task is not None:
                going.task.cancel()
                self._leaving.remove(going)
                return going.upstream
        return None

    async def _ended(self, going: _Leaving, within_s: float) -> None:
        """Wait for what runs, break off what is late, and close the way."""
        if not await self._idle(going.name, within_s):
            going.upstream.cut_off(0.0, asyncio.get_running_loop().time(), "the replica has left")
            await self._idle(going.name, _LETTING_GO_S)
        going.upstream.close()
        self._leaving.remove(going)
        _log.info("replica %s (%s) has left", going.name, going.address.url)
        if going.name not in self._joined:
            for hear in self._gone:
                hear(going.name)

    async def _idle(self, name: str, within_s: float) -> bool:
        until_s = self._clock() + within_s
        while self._fleet.remaining(name):
            if self._clock() >= until_s:
                return False
            await asyncio.sleep(_LOOK_AGAIN_S)
        return True

    # -- slow start ------------------------------------------------------------------------------------------------

    def _warm(self) -> None:
        if self.slow_start_s and self._warming is None:
            self._warming = asyncio.create_task(self._warmed(), name="slow start")

    async def _warmed(self) -> None:
        try:
            while self.warming(self._clock()):  # noqa: ASYNC110 -- time itself is what is waited for
                await asyncio.sleep(max(_LOOK_AGAIN_S, self.slow_start_s / 50))
        finally:
            self._warming = None

    def warming(self, now_s: float) -> bool:
        """Give replicas that joined the weight they have by now; False when all have their own."""
        for name, held in self._joined.items():
            if held.began_s is None and self._fleet.is_open(name):
                held.began_s = now_s
            self._weigh(name, held, now_s)
        return any(held.weight < held.address.weight for held in self._joined.values())

    def _weigh(self, name: str, held: _Joined, now_s: float) -> None:
        weight = self._weight(held, now_s)
        if weight != held.weight:
            held.weight = weight
            self._fleet.weighed(name, weight)

    def _weight(self, held: _Joined, now_s: float) -> float:
        age_s = 0.0 if held.began_s is None else now_s - held.began_s
        return held.address.weight * share(age_s, self.slow_start_s)


def share(age_s: float, slow_start_s: float) -> float:
    """The share of its weight that a replica has so long after it became usable: a straight line up to 1."""
    if age_s >= slow_start_s:
        return 1.0
    return _FIRST_SHARE + (1.0 - _FIRST_SHARE) * age_s / slow_start_s


def _way_of(address: ReplicaAddress) -> tuple[object, ...]:
    return address.url, address.tls, address.client_key


def _differs(one: ReplicaAddress, other: ReplicaAddress) -> bool:
    """Whether more than name and weight differ."""
    same = {"name": "", "weight": 1.0}
    return one.model_copy(update=same) != other.model_copy(update=same)
