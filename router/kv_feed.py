"""Listens to one publisher over ZMQ: subscribes, asks for what is missing, notices a new process behind the address.

The one rule: whatever arrives, from whomever, costs at most a bounded time and memory, is counted, and ends no task.
While batches are asked for again, live ones wait in the socket's queue, so the order is kept. libzmq reconnects by
itself, with back-off; after each connection the publisher must show a batch that is known, or counts as a new process.
Not here: what batches mean (`kv_publisher`).
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from router.kv_complaints import Complaints
from router.kv_publisher import Publisher
from router.kv_replay import ReplayError, options, replayed
from router.kv_sequence import MOST_NUMBER, Turn
from router.kv_sources import Source

_log: Final = logging.getLogger("router.kv_events")

_TICK_MS: Final = 1000
_AT_ONCE_S: Final = 0.001
_QUEUED: Final = 20_000
"""Batches that wait in the socket; a publisher drops what is beyond, and that is asked for again."""
_REPLAYS: Final = 3

CONNECTING, CONNECTED, REFUSED = "connecting", "connected", "refused"


class FeedError(Exception):
    """The events can't be used; the text completes `replica r1 …`."""


class Feed:
    """One subscription."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        source: Source,
        publisher: Publisher,
        *,
        told_as: str,
        timeout_s: float = 5.0,
        complaints: Complaints | None = None,
    ) -> None:
        """`told_as` names the replica in the log; `timeout_s` is the longest wait for the next batch of a replay.

        `complaints` are those of all that listened to this replica so far.
        """
        self.source = source
        self.publisher = publisher
        self.link = CONNECTING
        self.link_since_s = time.monotonic()
        self.caught_up = False
        """Whether what was published before is read, as far as it can be had."""
        self.removed_s = -math.inf
        """When it last told of a block that its engine gave up."""
        self._context = context
        self._told_as = told_as
        self._timeout_s = timeout_s
        self._unsure = False
        """Whether the publisher must show who it is before its batches count."""
        self._anew = False
        self._given_up = self._disbelieved = False
        self._reloaded: list[str] = []
        self._until_s = 0.0
        self._complaints = Complaints() if complaints is None else complaints

    def __repr__(self) -> str:
        return f"<Feed {self.source.endpoint} {self.link} {self.publisher!r}>"

    def __str__(self) -> str:
        rank = f" rank {self.source.rank}" if self.source.rank else ""
        return f"KV events of replica {self._told_as}{rank} ({self.source.endpoint})"

    @property
    def unreachable_s(self) -> float:
        """How long there has been no connection to the publisher."""
        return 0.0 if self.link == CONNECTED else time.monotonic() - self.link_since_s

    def doubted(self) -> None:
        """Something else says that the engine is another one: read again all that can be had."""
        self._unsure = self._anew = True

    def disbelieved(self) -> None:
        """What was told is not there: forget it, and go on with what comes."""
        self._disbelieved = True

    def reloaded(self, adapter: str) -> None:
        """The engine has loaded an adapter from elsewhere, under the name it had."""
        self._reloaded.append(adapter)

    async def run(self) -> None:
        """Until cancelled. Raises `FeedError`."""
        with self._context.socket(zmq.SUB) as socket:
            for option, value in options().items():
                socket.setsockopt(option, value)
            socket.setsockopt(zmq.RCVHWM, _QUEUED)
            socket.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            monitor = socket.get_monitor_socket()
            try:
                await self._listen(socket, monitor)
            except zmq.ZMQError as error:
                raise FeedError(f"has KV events that can't be reached ({error.strerror})") from None
            finally:
                socket.disable_monitor()
                monitor.close(linger=0)  # the event loop would keep it for ever

    async def _listen(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        socket.connect(self.source.endpoint)
        poller = zmq.asyncio.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        live: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
        links: zmq.Socket[bytes] = zmq.Socket.shadow(monitor)
        while True:
            await poller.poll(_TICK_MS)
            self._watch(links)
            if self._given_up:  # libzmq calls again after a lost connection, not after a frame beyond the limit
                self._given_up = False
                socket.disconnect(self.source.endpoint)
                socket.connect(self.source.endpoint)
            if self._disbelieved:
                self._disbelieved = False
                await self._paced(self.publisher.disbelieved())
                self._complain("unfounded", f"{self.publisher.degraded}; forgotten")
            while self._reloaded:
                await self._paced(self.publisher.reloaded(self._reloaded.pop()))
            if self._unsure and self.link == CONNECTED:
                self._unsure = False
                await self._identified()
                self.caught_up = True
            while not self._unsure:
                try:
                    frames = live.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                await self.arrived(frames)
                await self._breath()

    def _watch(self, monitor: "zmq.Socket[bytes]") -> None:
        """Learn how the connection is."""
        while True:
            try:
                told = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            if told == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._linked(CONNECTED)
                self._unsure = True
            elif told in (zmq.Event.HANDSHAKE_FAILED_PROTOCOL, zmq.Event.HANDSHAKE_FAILED_NO_DETAIL):
                self._linked(REFUSED)
                self.publisher.faults["refused"] += 1
                self._complain("service", "what answers there is not a ZMQ publisher")
            elif told == zmq.Event.DISCONNECTED and self.link == CONNECTED:
                self._linked(CONNECTING)
                self.publisher.faults["disconnected"] += 1
                self._given_up = True
            elif told == zmq.Event.CONNECT_RETRIED:
                self._given_up = False

    def _linked(self, link: str) -> None:
        if CONNECTED in (link, self.link):
            self.link_since_s = time.monotonic()
        self.link = link

    # -- batches ---------------------------------------------------------------------------------------------------

    async def arrived(self, frames: list[bytes]) -> None:
        """One message of the subscription."""
        publisher = self.publisher
        number = int.from_bytes(frames[1], "big") if len(frames) == 3 and len(frames[1]) == 8 else MOST_NUMBER
        if number >= MOST_NUMBER:
            publisher.faults["foreign"] += 1
            self._complain("foreign", "it sends messages that are no KV events")
            return
        payload = frames[2]
        turn = publisher.turn(number, payload)
        if turn is Turn.SEEN:
            publisher.faults["duplicate"] += 1
            return
        if turn is Turn.RESTARTED:
            self._restarted()
            await self._paced(publisher.restarted())
            turn = publisher.turn(number, payload)
        if turn is Turn.AHEAD:
            await self._replay(until=number)
            if publisher.turn(number, payload) is Turn.SEEN:
                return
        await self._take(number, payload)

    async def _take(self, number: int, payload: bytes) -> None:
        counts = self.publisher.blocks.counts
        before, removed = self.publisher.degraded, counts["removed"]
        await self._paced(self.publisher.take(number, payload))
        if counts["removed"] != removed:
            self.removed_s = time.monotonic()
        if self.publisher.degraded and not before:
            self._complain("missing", f"{self.publisher.degraded}; known in part until it is emptied or restarted")
        if self.publisher.broken:
            raise FeedError(self.publisher.broken)

    async def _paced(self, work: Iterator[None]) -> None:
        for _ in work:
            await self._breath()

    async def _breath(self) -> None:
        """Let others run, if it is time."""
        if time.monotonic() > self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.monotonic() + _AT_ONCE_S

    # -- what is missing -------------------------------------------------------------------------------------------

    async def _identified(self) -> None:
        """Just connected: is this the process heard so far, and what did it publish meanwhile?"""
        publisher = self.publisher
        if self._anew:
            self._anew = False
            await self._paced(publisher.begun_again())
        if self.source.replay is None:
            return
        last = publisher.sequence.last
        if last is not None and not await self._shows(last):
            self._restarted()
            await self._paced(publisher.restarted())
        await self._replay(until=None)

    async def _shows(self, number: int) -> bool:
        """Whether the publisher still has the batch heard last. Without an answer it gets the benefit of the doubt."""
        assert self.source.replay is not None, "asked only where there is a replay endpoint"  # noqa: S101
        try:
            async with aclosing(self._again(self.source.replay, number)) as answers:
                async for found, payload in answers:
                    return found > number or self.publisher.turn(found, payload) is Turn.SEEN
        except ReplayError as error:
            self._replay_failed(error)
            return True
        return False

    async def _replay(self, until: int | None) -> None:
        """Take what was published before number `until`, or up to now."""
        publisher = self.publisher
        for _ in range(_REPLAYS):
            begun = publisher.sequence.next
            if self.source.replay is None or begun == until:
                return
            try:
                if await self._replayed(self.source.replay, until):
                    return
            except ReplayError as error:
                self._replay_failed(error)
                return
            if publisher.sequence.next == begun:
                return

    async def _replayed(self, endpoint: str, until: int | None) -> bool:
        """One go; False when batches were left out in the middle and another go may bring them."""
        publisher = self.publisher
        first = True
        async with aclosing(self._again(endpoint, publisher.sequence.next)) as answers:
            async for number, payload in answers:
                if until is not None and number >= until:
                    break
                turn = publisher.turn(number, payload)
                if turn is Turn.RESTARTED or (turn is Turn.AHEAD and not first):
                    return False
                if turn is not Turn.SEEN:
                    await self._take(number, payload)
                first = False
        return True

    def _again(self, endpoint: str, start: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """Batches from `start` on; to be closed, for what is taken of them may raise."""
        return replayed(self._context, endpoint, start, timeout_s=self._timeout_s)

    def _replay_failed(self, error: ReplayError) -> None:
        self.publisher.faults["replay_failed"] += 1
        self._complain("replay", f"the replay endpoint {self.source.replay} {error}")

    # -- the log ---------------------------------------------------------------------------------------------------

    def _restarted(self) -> None:
        if self._complaints.due(f"restart {self.source.rank}", time.monotonic()):
            _log.info("%s: its engine has restarted", self)

    def _complain(self, kind: str, about: str) -> None:
        if self._complaints.due(f"{kind} {self.source.rank}", time.monotonic()):
            _log.warning("%s: %s", self, about)
