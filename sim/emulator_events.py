"""The emulator publishes its KV events as vLLM 0.32 does: a ZMQ PUB socket, and a ROUTER socket that replays.

    published   [topic, number as 8 bytes big-endian from 0, msgpack of a batch], one batch per step with events
    asked       ["", first sequence number wanted]
    replayed    ["", topic, number, batch] for each kept batch from there on, then ["", "", -1, ""]

The one rule: the engine never waits for a subscriber; who is too slow misses batches and has to ask for them. The
replay begins later than asked, without a word, when the kept batches do. What a batch says is in `emulator_pages`.
"""

import asyncio
import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from sim.cache_events import Event
from sim.emulator_pages import Batch, Origin, Pages, WireEvent

_log = logging.getLogger(__name__)

KEPT_BATCHES = 10_000
_MOST_WAITING = 100_000
_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_ASKED_BYTES = 1024  # a longer question is none


class Telling(Protocol):
    """Who is told what the cache of one engine does."""

    def opened(self, keys: Sequence[bytes], tokens: Sequence[int], origin: Origin) -> None:
        """A job with these blocks begins."""

    def closed(self, keys: Sequence[bytes]) -> None:
        """It is over."""

    def stepped(self) -> None:
        """A step of the engine is over."""

    def bind(self, host: str) -> None:
        """Begin to publish on a numeric address. Raises `OSError` when a port is taken."""

    def source(self) -> dict[str, Any] | None:
        """What `GET /kv_event_sources` says of this engine."""

    async def close(self) -> None:
        """Free the ports."""


class Untold:
    """Events are off."""

    def opened(self, keys: Sequence[bytes], tokens: Sequence[int], origin: Origin) -> None: ...
    def closed(self, keys: Sequence[bytes]) -> None: ...
    def stepped(self) -> None: ...
    def bind(self, host: str) -> None: ...
    def source(self) -> dict[str, Any] | None:
        return None

    async def close(self) -> None: ...


class Published:
    """Events of one of so many engines, on two sockets; a port of 0 takes any free one."""

    def __init__(
        self,
        drained: Callable[[], list[Event]],
        block_tokens: int,
        *,
        topic: str,
        rank: int,
        port: int,
        replay_port: int,
        kept_batches: int = KEPT_BATCHES,
    ) -> None:
        self.pages = Pages(block_tokens)
        self._drained = drained
        self._topic = topic.encode()
        self._rank = rank
        self._ports = (port, replay_port)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=kept_batches)
        self._pending: list[WireEvent] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._next = 0
        self._context = zmq.Context()
        self._out: zmq.Socket[bytes] | None = None
        self._replay: asyncio.Task[None] | None = None

    def bind(self, host: str) -> None:
        out = self._out = self._context.socket(zmq.PUB)
        out.set_hwm(_MOST_WAITING)
        router = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        router.setsockopt(zmq.MAXMSGSIZE, _ASKED_BYTES)
        router.setsockopt(zmq.SNDHWM, 0)
        try:
            self._ports = (_bound(out, host, self._ports[0]), _bound(router, host, self._ports[1]))
        except OSError:
            router.close(linger=0)
            raise
        self._replay = asyncio.create_task(self._replayed(router), name="replay of KV events")

    def source(self) -> dict[str, Any] | None:
        out, replay = (f"tcp://*:{port}" for port in self._ports)
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": out,
            "replay_endpoint": replay,
            "buffer_steps": self._kept.maxlen,
            "hwm": _MOST_WAITING,
            "max_queue_size": _MOST_WAITING,
            "topic": self._topic.decode(),
        }

    def opened(self, keys: Sequence[bytes], tokens: Sequence[int], origin: Origin) -> None:
        self.pages.opened(keys, tokens, origin)

    def closed(self, keys: Sequence[bytes]) -> None:
        self._gather()  # while the pages of this job are known
        self.pages.closed(keys)

    def stepped(self) -> None:
        self._gather()
        if not self._pending or self._out is None:
            return
        number = self._next.to_bytes(_NUMBER_BYTES, "big")
        payload = self._encoder.encode(Batch(time.time(), self._pending, self._rank))
        self._pending = []
        self._next += 1
        self._kept.append((number, payload))
        self._out.send_multipart((self._topic, number, payload), zmq.NOBLOCK)

    async def close(self) -> None:
        if self._replay is not None:
            self._replay.cancel()
            await asyncio.gather(self._replay, return_exceptions=True)
            self._replay = None
        if self._out is not None:
            self._out.close(linger=0)
            self._out = None
        self._context.term()

    def _gather(self) -> None:
        self._pending += self.pages.told(self._drained())

    async def _replayed(self, router: zmq.asyncio.Socket) -> None:
        try:
            while True:
                asked = await router.recv_multipart()
                if len(asked) != 3 or len(asked[2]) > _NUMBER_BYTES:
                    _log.warning("a replay was asked in %d frames, not in 3: not answered", len(asked))
                    continue
                client, first = asked[0], int.from_bytes(asked[2], "big")
                for number, payload in list(self._kept):
                    if int.from_bytes(number, "big") >= first:
                        await router.send_multipart((client, b"", self._topic, number, payload))
                await router.send_multipart((client, b"", b"", _END, b""))
        finally:
            router.close(linger=0)


def _bound(socket: "zmq.Socket[Any]", host: str, port: int) -> int:
    """The port that this socket listens on now."""
    socket.setsockopt(zmq.IPV6, int(":" in host))
    place = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{place}:{port or '*'}")
    except zmq.ZMQError as error:
        raise OSError(error.errno or errno.EINVAL, f"KV events: {error.strerror}", f"{place}:{port}") from error
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
