"""Replicas that stop: hung like a process that was sent SIGSTOP, or going without closing their connections."""

import asyncio
import gc

import pytest

from router.aside import Aside
from router.http.connection import ReplicaConnection
from router.http.exchange import TimedOut, Timeouts, Unreachable
from router.http.upstream import Upstream
from router.probes import ProbeError, Refused
from router.vigil import Vigil
from tests.fakes import (
    EVENT,
    IDLE,
    STREAM,
    FakeTransport,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    posted,
    router_over,
    until,
)

HUNG_S = 0.4


async def test_a_hung_replica_is_out_and_its_requests_go_to_others_and_it_comes_back():
    async with fake_replica() as hung, fake_replica() as good, router_over(hung, good, timeouts__hung_s=HUNG_S) as up:
        hung.stopped = asyncio.Event()
        replies = await asyncio.gather(*(posted(up.url) for _ in range(10)))
        assert [reply.status for reply in replies] == [200] * 10
        assert (hung.unanswered > 0, len(good.seen)) == (True, 10)
        first = up.watcher.states()[0]
        assert (first.usable, first.failures["silent"]) == (False, 1)
        assert "says nothing to the requests it has" in first.reason
        assert load_of(up) == IDLE
        hung.stopped.set()
        hung.stopped = None
        await until(lambda: up.watcher.states()[0].usable)
        async with asyncio.timeout(10):  # its first request decides, once nobody remembers that it failed
            while up.watcher.states()[0].state != "open":
                assert (await posted(up.url)).status == 200


async def test_new_requests_pass_a_silent_replica_over_while_it_is_asked():
    async with (
        fake_replica() as hung,
        fake_replica() as good,
        router_over(hung, good, timeouts__hung_s=8, health__interval_s=60) as up,
    ):
        hung.stopped = asyncio.Event()
        first = [asyncio.ensure_future(posted(up.url)) for _ in range(2)]
        aside = up.gateway._retries.aside
        await until(lambda: aside.names(0.0) == {"r1"}, 10)
        for _ in range(6):
            assert (await posted(up.url)).status == 200
        assert (hung.unanswered, len(good.seen)) == (2, 7)  # the request, and the question
        hung.stopped.set()
        hung.stopped = None
        assert {reply.status for reply in await asyncio.gather(*first)} == {200}
        await until(lambda: aside.names(0.0) == set())
        assert up.watcher.states()[0].failures == {}


async def test_a_long_prefill_is_no_hang():
    release = asyncio.Event()

    async def slow(exchange):
        await release.wait()
        await exchange.send(ok())

    async with fake_replica(slow) as busy, fake_replica() as good, router_over(busy, good, timeouts__hung_s=0.4) as up:
        tasks = [asyncio.ensure_future(posted(up.url)) for _ in range(2)]
        await until(lambda: len(busy.seen) == 1)
        asked = busy.asked
        await until(lambda: busy.asked > asked + 3)
        assert up.watcher.states()[0].usable
        release.set()
        assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
        assert up.watcher.states()[0].failures == {}


async def test_the_only_replica_is_waited_for():
    async with fake_replica() as hung, router_over(hung, timeouts__hung_s=0.1, health__interval_s=60) as up:
        hung.stopped = asyncio.Event()
        task = asyncio.ensure_future(posted(up.url))
        await until(lambda: hung.unanswered >= 3)
        assert up.watcher.states()[0].usable
        hung.stopped.set()
        hung.stopped = None
        assert (await task).status == 200


async def test_silent_streams_of_a_replica_that_refuses_connections_are_broken_off(monkeypatch):
    monkeypatch.setattr("router.vigil.GOING_S", 0.2)

    async def answer(exchange):
        await exchange.send(STREAM + EVENT)
        await exchange.left()

    async with (
        fake_replica(answer) as going,
        fake_replica() as good,
        router_over(going, good, timeouts__hung_s=0.1) as up,
        client_of(up.url) as client,
    ):
        while not going.seen:
            await client.send(post())
            head = await client.head()
            if b"event-stream" not in head:
                await client.exactly(len(b'{"ok":true}'))
        going.server.close()
        await client.to(b"\n\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.exactly(1000)
        await until(lambda: load_of(up) == IDLE)
        assert 'outcome="given-up"' in up.metrics.exposition().decode()


# -- one replica, by its sockets' words --------------------------------------------------------------------------------


class Book:
    """A watcher that keeps what it is told."""

    def __init__(self, *, alone: bool = False) -> None:
        self.told: list[str] = []
        self.alone = alone

    def silenced(self, name: str, trouble: str) -> bool:
        self.told.append(trouble)
        return not self.alone


class Content:
    ear = None

    def declined(self, *_):
        return None

    def began(self) -> None:
        pass


class NoReply:
    framed = True
    source = None

    def write(self, data):
        raise AssertionError("nothing is passed on")


async def exchanging(upstream: Upstream) -> asyncio.Task:
    connection = ReplicaConnection(upstream)
    connection.connection_made(FakeTransport())
    upstream.kept(connection)
    task = asyncio.ensure_future(upstream.exchange(b"POST", NoReply(), Content()))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    ("error", "alone", "out"),
    [
        (ProbeError("did not answer"), False, True),
        (Refused("refused the connection"), False, True),
        (ProbeError("did not answer"), True, False),
        (None, False, False),
    ],
)
async def test_what_follows_from_a_question(error, alone, out):
    upstream, book, aside = (
        Upstream("127.0.0.1", 1, timeouts=Timeouts(idle_s=None)),
        Book(alone=alone),
        Aside((), len),
    )
    asked = asyncio.Event()

    async def ask(name: str) -> None:
        asked.set()
        assert aside.names(0.0) == {"r1"}
        if error is not None:
            raise error

    task = await exchanging(upstream)
    async with Vigil({"r1": upstream}, book, aside, ask, hung_s=0.02):
        await asyncio.wait_for(asked.wait(), 5)
        await until(lambda: aside.names(0.0) == set())
        assert bool(book.told) is (error is not None)
        if out:
            with pytest.raises(TimedOut, match="says nothing"):
                await task
        else:
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Slow:
    """A replica that answers questions for its health in a while, by turns of the test."""

    def __init__(self) -> None:
        self.questions: list[asyncio.Future[None]] = []
        self.upstream = Upstream("127.0.0.1", 1, timeouts=Timeouts(idle_s=None))
        self.book = Book()
        self.vigil = Vigil({"r1": self.upstream}, self.book, Aside((), len), self.ask, hung_s=0.2)

    async def ask(self, name: str) -> None:
        self.questions.append(asyncio.get_running_loop().create_future())
        await self.questions[-1]


async def test_one_answer_to_either_question_is_enough():
    slow = Slow()
    task = await exchanging(slow.upstream)
    async with slow.vigil:
        for which in (0, 1):
            begun = len(slow.questions)
            await until(lambda begun=begun: len(slow.questions) == begun + 2)
            slow.questions[begun + which].set_result(None)
            await until(lambda begun=begun: all(one.done() for one in slow.questions[: begun + 2]))
        assert (slow.book.told, task.done()) == ([], False)
        begun = len(slow.questions)
        await until(lambda: bool(slow.book.told))
        assert len(slow.questions) == begun + 2
        assert "asked twice" in slow.book.told[0]
        with pytest.raises(TimedOut):
            await task


async def test_both_questions_may_fail_at_once_without_a_word(caplog):
    slow = Slow()
    task = await exchanging(slow.upstream)
    async with slow.vigil:
        await until(lambda: len(slow.questions) == 2)
        for question in slow.questions:
            question.set_exception(Refused("refuses connections"))
        with pytest.raises(TimedOut):
            await task
    del slow.questions, question
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_who_was_slow_to_answer_lately_has_more_time():
    slow = Slow()
    vigil = slow.vigil
    patience_s = vigil._patience_s("r1", 0.0)
    assert patience_s == pytest.approx(0.15)
    vigil._slowest["r1"] = (0.1, 100.0)
    assert vigil._patience_s("r1", 100.0) == pytest.approx(0.3)
    assert vigil._patience_s("r2", 100.0) == patience_s
    assert vigil._patience_s("r1", 130.0) == pytest.approx(0.15)
    vigil._slowest["r1"] = (9.0, 100.0)
    assert vigil._patience_s("r1", 100.0) == pytest.approx(0.75)


async def test_how_long_an_answer_took_is_remembered():
    slow = Slow()
    task = await exchanging(slow.upstream)
    async with slow.vigil:
        await until(lambda: len(slow.questions) == 2)
        slow.questions[1].set_result(None)
        await until(lambda: "r1" in slow.vigil._slowest)
        assert slow.vigil._slowest["r1"][0] >= 0.07  # half of the time to answer had gone
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nobody_is_asked_while_nothing_waits():
    class LookedThrough(dict):
        looks = 0

        def items(self):
            self.looks += 1
            return super().items()

    upstreams, asked = LookedThrough(r1=Upstream("127.0.0.1", 1, timeouts=Timeouts())), []

    async def ask(name: str) -> None:
        asked.append(name)

    async with Vigil(upstreams, Book(), Aside((), len), ask, hung_s=0.01):
        await until(lambda: upstreams.looks > 5)
    assert asked == []


async def test_silence_is_measured_from_the_last_word_or_the_first_wait():
    upstream = Upstream("127.0.0.1", 1, timeouts=Timeouts())
    assert upstream.silent_s(5.0) == 0.0
    waiting = await exchanging(upstream)
    (connection,) = upstream._busy
    assert [upstream.silent_s(now_s) for now_s in (10.0, 12.0)] == [0.0, 2.0]
    other = await exchanging(upstream)
    assert upstream.silent_s(13.0) == 3.0  # a new request is no word of the replica
    connection.data_received(b"HTTP/1.1 200 OK\r\n")
    assert [upstream.silent_s(now_s) for now_s in (14.0, 15.5)] == [0.0, 1.5]
    upstream.heard()
    assert [upstream.silent_s(now_s) for now_s in (16.0, 18.0)] == [0.0, 2.0]
    connection.pause()
    assert upstream.silent_s(19.0) == 3.0  # a stream that its client holds up says nothing either way
    upstream.given_up(TimedOut("hung"))
    for task in (waiting, other):
        with pytest.raises(TimedOut):
            await task
    assert upstream.silent_s(30.0) == 0.0


async def test_a_replica_that_can_not_be_reached_is_given_up_like_one_that_hangs():
    """An address from which nothing comes back, as of a machine that lost its power."""
    upstream = Upstream("127.0.0.1", 1, timeouts=Timeouts(connect_s=60))
    loop = asyncio.get_running_loop()

    async def never(*_, **__):
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_connection", never)
        task = asyncio.ensure_future(upstream.exchange(b"POST", NoReply(), Content()))
        await until(lambda: upstream.silent_s(loop.time()) > 0.0)
        upstream.given_up(TimedOut("hung"))
        with pytest.raises(Unreachable, match="no connection within"):
            await task
    assert upstream.silent_s(loop.time() + 5) == 0.0
