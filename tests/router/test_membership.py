"""Replicas that join, start slowly, drain and leave while requests go on."""

import asyncio

import pytest

from policies.fleet import Fleet
from router.errors import BadRequest, NotServed
from router.http.exchange import Timeouts
from router.http.upstream import Upstream
from router.membership import OPERATOR, Membership, share
from router.sections import ReplicaAddress
from tests.fakes import IDLE, STREAM, chunk, client_of, fake_replica, load_of, post, posted, router_over, until

ASKING = 2
"""Connections of those who ask replicas; kept some seconds after the last question."""


class Watching:
    """Stands for the watcher: a replica is open as soon as it is watched."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.watched: dict[str, str] = {}

    def watch(self, name: str, url: str) -> None:
        self.watched[name] = url

    async def unwatch(self, name: str) -> None:
        del self.watched[name]


class Following:
    """Stands for the KV events: it asks the watcher of a replica's model for as long as it follows it."""

    def __init__(self, watching: Watching) -> None:
        self.watching = watching
        self.followed: dict[str, str] = {}

    def follow(self, name: str, url: str, setting: str) -> None:
        self.followed[name] = setting

    async def unfollow(self, name: str) -> None:
        assert name in self.watching.watched
        del self.followed[name]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def replica(name: str, port: int | None = None, **more: object) -> ReplicaAddress:
    return ReplicaAddress(name=name, url=f"http://10.0.0.1:{port or 8000 + int(name[1:])}", **more)


class Book:
    """A membership and all that it changes."""

    def __init__(self, **settings: object) -> None:
        self.fleet, self.clock, self.gone = Fleet(), Clock(), []
        self.watching = Watching(self.fleet)
        self.following = Following(self.watching)
        self.upstreams: dict[str, Upstream] = {}
        self.made: list[str] = []
        self.membership = Membership(
            self.fleet,
            self.watching,
            self.following,
            self.upstreams,
            way=self.way,
            clock=self.clock,
            gone=[self.gone.append],
            **settings,
        )

    def way(self, address: ReplicaAddress) -> Upstream:
        self.made.append(address.url)
        return Upstream("10.0.0.1", 1, timeouts=Timeouts())

    def agrees(self) -> tuple[str, ...]:
        """The replicas, the same everywhere."""
        names = self.fleet.replicas()
        assert set(self.watching.watched) == set(self.following.followed) == set(self.upstreams) == set(names)
        return names


async def test_every_book_agrees_on_who_is_there():
    book = Book()
    async with book.membership as membership:
        membership.started("configuration", [replica("r1"), replica("r2")])
        assert book.agrees() == ("r1", "r2")
        await membership.wanted("configuration", [replica("r2"), replica("r3")])
        assert book.agrees() == ("r2", "r3")
        await membership.wanted("configuration", [])
        assert book.agrees() == ()
        await until(lambda: book.gone == ["r1", "r2", "r3"])
        assert membership.members() == ()


async def test_a_replica_is_its_url_and_keeps_its_name():
    book = Book()
    async with book.membership as membership:
        membership.started("configuration", [replica("r1", 8001), replica("r2", 8002)])
        await membership.wanted("configuration", [replica("r1", 8002), replica("r2", 8003)])
        assert [(one.name, one.url) for one in membership.members() if one.state == "joined"] == [
            ("r2", "http://10.0.0.1:8002"),
            ("10.0.0.1:8003", "http://10.0.0.1:8003"),
        ]
        assert book.agrees() == ("r2", "10.0.0.1:8003")


async def test_what_two_sources_want_stays_until_neither_does():
    book = Book()
    async with book.membership as membership:
        membership.started("configuration", [replica("r1")])
        await membership.wanted("file", [replica("r9", 8001)])
        [only] = membership.members()
        assert (only.name, only.wanted_by) == ("r1", ("configuration", "file"))
        await membership.wanted("configuration", [])
        assert book.agrees() == ("r1",)
        await membership.wanted("file", [])
        assert book.agrees() == ()


async def test_what_an_operator_took_out_stays_out_until_he_brings_it_back():
    book = Book()
    async with book.membership as membership:
        membership.started("configuration", [replica("r1"), replica("r2")])
        await membership.drained("r1")
        await membership.wanted("configuration", [replica("r1"), replica("r2")])
        assert book.agrees() == ("r2",)
        assert await membership.added(replica("r1")) == "r1"
        assert book.agrees() == ("r2", "r1")
        [_, back] = membership.members()
        assert back.wanted_by == ("configuration", OPERATOR)
        await membership.removed("r1")
        assert book.agrees() == ("r2",)


async def test_what_an_operator_asks_must_make_sense():
    book = Book()
    async with book.membership as membership:
        membership.started("configuration", [replica("r1")])
        with pytest.raises(BadRequest, match=r"'r1' is http://10\.0\.0\.1:8001; give this one another name"):
            await membership.added(replica("r1", 9999))
        with pytest.raises(NotServed, match="no replica is named 'r9'"):
            await membership.drained("r9")
        assert book.agrees() == ("r1",)


async def test_a_new_weight_changes_nothing_else_and_new_events_join_again():
    book = Book()
    async with book.membership as membership:
        membership.started("configuration", [replica("r1")])
        await membership.wanted("configuration", [replica("r1", weight=2.0)])
        assert [one.weight for one in membership.members()] == [2.0]
        assert len(book.made) == 1
        await membership.wanted("configuration", [replica("r1", weight=2.0, kv_events="off", capacity_blocks=7)])
        assert book.agrees() == ("r1",)
        assert book.following.followed == {"r1": "off"}


async def test_a_replica_that_joins_gets_its_weight_bit_by_bit_from_when_it_is_usable():
    book = Book(slow_start_s=10.0)
    async with book.membership as membership:
        membership.started("configuration", [replica("r1")])
        await membership.added(replica("r2", weight=4.0))
        book.fleet.closed("r2")

        def weights(now_s: float) -> list[float]:
            book.clock.now_s = now_s
            membership.warming(now_s)
            return [round(one.weight, 3) for one in membership.members()]

        assert weights(100.0) == [1.0, 0.4]
        assert weights(500.0) == [1.0, 0.4]
        book.fleet.opened("r2")
        assert weights(600.0) == [1.0, 0.4]
        assert weights(605.0) == [1.0, 2.2]
        assert membership.warming(609.0)
        assert weights(610.0) == [1.0, 4.0]
        assert not membership.warming(611.0)


@pytest.mark.parametrize(
    ("age_s", "slow_start_s", "expected"), [(0.0, 0.0, 1.0), (0.0, 8.0, 0.1), (4.0, 8.0, 0.55), (8.0, 8.0, 1.0)]
)
def test_the_share_grows_in_a_straight_line(age_s, slow_start_s, expected):
    assert share(age_s, slow_start_s) == pytest.approx(expected)


async def test_changes_that_come_together_are_made_one_after_the_other():
    book = Book()
    async with book.membership as membership:
        membership.started("configuration", [replica("r1"), replica("r2"), replica("r3")])
        await asyncio.gather(
            membership.wanted("configuration", [replica("r3"), replica("r4")]),
            membership.drained("r2"),
            membership.added(replica("r5")),
            membership.wanted("file", [replica("r4"), replica("r6")]),
        )
        assert set(book.agrees()) == {"r3", "r4", "r5", "r6"}


# -- over sockets ------------------------------------------------------------------------------------------------------


def streaming(go: asyncio.Event):
    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.wait_for(go.wait(), 5)
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    return answer


async def test_a_draining_replica_gets_nothing_new_and_its_stream_ends():
    go = asyncio.Event()
    async with fake_replica(streaming(go)) as old, fake_replica() as new, router_over(old) as up:
        membership = up.reload.membership
        async with client_of(up.url) as client:
            await client.send(post())
            await client.head()
            name = await membership.added(ReplicaAddress(name="r2", url=new.url))
            await membership.drained("r1")
            await until(lambda: up.fleet.is_open(name))
            assert [await posted(up.url) for _ in range(3)][-1].status == 200
            assert (len(old.seen), len(new.seen)) == (1, 3)
            assert {(one.name, one.state, one.in_flight) for one in membership.members()} == {
                ("r2", "joined", 0),
                ("r1", "draining", 1),
            }
            go.set()
            assert await client.to(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await until(lambda: [one.name for one in membership.members()] == ["r2"])
        await until(lambda: old.open <= ASKING)
        assert load_of(up) == IDLE


async def test_a_removed_replica_breaks_its_streams_and_hands_on_what_it_had_not_begun():
    go = asyncio.Event()
    stream, waiting = streaming(go), asyncio.Event()

    async def answer(exchange):
        if len(exchange.replica.seen) == 1:
            await stream(exchange)
        else:
            waiting.set()
            await exchange.left()

    async with fake_replica(answer) as old, fake_replica() as new, router_over(old) as up:
        async with client_of(up.url) as running, client_of(up.url) as begun:
            await running.send(post())
            await running.head()
            await begun.send(post())
            await asyncio.wait_for(waiting.wait(), 5)
            name = await up.reload.membership.added(ReplicaAddress(name="r2", url=new.url))
            await until(lambda: up.fleet.is_open(name))
            await up.reload.membership.removed("r1")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await running.to(b"[DONE]")
            assert (await begun.reply()).status == 200
            assert len(new.seen) == 1
        await until(lambda: load_of(up) == IDLE and len(up.reload.membership.members()) == 1)


async def test_a_replica_that_returns_while_it_drains_goes_on_with_what_it_had():
    go = asyncio.Event()
    async with fake_replica(streaming(go)) as old, router_over(old) as up:
        async with client_of(up.url) as client:
            await client.send(post())
            await client.head()
            await up.reload.membership.drained("r1")
            await up.reload.membership.added(ReplicaAddress(name="r1", url=old.url))
            assert up.fleet.load("r1")[0] == 1
            go.set()
            assert await client.to(b"\r\n0\r\n\r\n")
        await until(lambda: load_of(up) == IDLE)
        await until(lambda: up.fleet.is_open("r1"))
        assert (await posted(up.url)).status == 200


async def test_two_hundred_comings_and_goings_leave_nothing_behind():
    async with fake_replica() as stays, fake_replica() as comes, router_over(stays) as up:
        membership = up.reload.membership
        await posted(up.url)
        before = len(asyncio.all_tasks())
        for _ in range(200):
            await membership.added(ReplicaAddress(name="r2", url=comes.url))
            await membership.removed("r2")
        await membership.added(ReplicaAddress(name="r2", url=comes.url))
        await until(lambda: up.fleet.is_open("r2"))
        await posted(up.url)
        await posted(up.url)
        assert comes.seen
        await membership.removed("r2")
        await until(lambda: comes.open <= ASKING)
        await until(lambda: len(asyncio.all_tasks()) <= before + ASKING)
        assert [line for line in up.metrics.exposition().splitlines() if b'replica="r2"' in line] == []
        assert b'router_requests_total{model="m",outcome="ok",replica="other"' in up.metrics.exposition()
