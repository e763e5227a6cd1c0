"""A replica whose every byte is scripted, a raw client, and a router over such replicas.

The one rule: nothing here sleeps for a fixed time; what must happen is awaited, with a bound.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from router.app import running
from router.config import load

BOUND_S = 5.0
MODEL = {"id": "m", "object": "model", "root": "m", "parent": None, "max_model_len": 4096}


async def until(condition: Callable[[], bool], bound_s: float = BOUND_S) -> None:
    """Return as soon as `condition` holds; fail when it does not within `bound_s`."""
    async with asyncio.timeout(bound_s):
        while not condition():  # noqa: ASYNC110 -- what is awaited has no event of its own
            await asyncio.sleep(0.002)


@dataclass(slots=True)
class Message:
    """A request or a reply as its raw bytes arrived."""

    head: bytes
    body: bytes

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.rstrip(b"\r\n").split(b"\r\n")[1:]
        return [(line.split(b":", 1)[0], line.split(b":", 1)[1].strip()) for line in lines]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key.lower() == name.lower()]


@dataclass(slots=True)
class Seen(Message):
    """One request."""

    connection: int

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]


Answer = Callable[["Exchange"], Awaitable[None]]


@dataclass(slots=True)
class Exchange:
    """What a script is given: the request, and the socket to answer on."""

    seen: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    replica: "FakeReplica"

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.replica.sent_bytes += len(data)

    def cut(self) -> None:
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

    async def left(self) -> None:
        """Return when the other side has closed."""
        while True:
            try:
                if not await self.reader.read(65536):
                    break
            except ConnectionError:
                break
        self.replica.left += 1


def said(raw: bytes) -> Answer:
    """A script that answers literal bytes."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(raw)

    return answer


def ok(body: bytes = b'{"ok":true}', *fields: bytes, status: bytes = b"200 OK") -> bytes:
    """A framed reply."""
    lines = [
        b"HTTP/1.1 " + status,
        *(fields or (b"Content-Type: application/json",)),
        b"Content-Length: %d" % len(body),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')


@dataclass(slots=True)
class FakeReplica:
    """Answers `/health`, `/v1/models` and `/metrics` as an engine does; everything else by `answer`."""

    answer: Answer
    models: list[dict[str, object]] = field(default_factory=lambda: [MODEL])
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    sent_bytes: int = 0
    left: int = 0
    healthy: bool = True
    stopped: asyncio.Event | None = None
    """While set to an event, nothing is answered, not even probes, until the event is set."""
    unanswered: int = 0
    asked: int = 0
    """Questions for its health."""
    tokenize: Callable[[dict[str, object]], dict[str, object]] | None = None
    """Answers the router's own questions to `/tokenize`; without it the path is not found."""
    questions: int = 0
    """Questions to `/tokenize`."""
    port: int = 0
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> "FakeReplica":
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=1 << 20)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        task = asyncio.current_task()
        self.tasks.add(task)
        try:
            while not writer.is_closing():
                await self._one(reader, writer, number)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        seen = Seen(await reader.readuntil(b"\r\n\r\n"), b"", number)
        for length in seen.values(b"Content-Length"):
            seen.body = await reader.readexactly(int(length))
        if self.stopped is not None:
            self.unanswered += 1
            await self.stopped.wait()
        path = seen.line.split(b" ")[1]
        if path == b"/health":
            self.asked += 1
            await _written(writer, ok(b"") if self.healthy else ok(b"", status=b"503 Service Unavailable"))
        elif path == b"/v1/models":
            await _written(writer, ok(json.dumps({"object": "list", "data": self.models}).encode()))
        elif path == b"/tokenize" and b"X-Forwarded-For" not in seen.head and self.tokenize is not None:
            self.questions += 1
            await _written(writer, ok(json.dumps(self.tokenize(json.loads(seen.body))).encode()))
        elif path in (b"/metrics", b"/kv_event_sources") or (
            path in (b"/tokenize", b"/v1/messages") and b"X-Forwarded-For" not in seen.head
        ):
            self.questions += path == b"/tokenize"
            await _written(writer, ok(b"not found", b"Content-Type: text/plain", status=b"404 Not Found"))
        else:
            self.seen.append(seen)
            await self.answer(Exchange(seen, reader, writer, self))

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _written(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@asynccontextmanager
async def fake_replica(answer: Answer | bytes | None = None):
    """A started replica; it answers `{"ok":true}` unless told otherwise."""
    answer = ok() if answer is None else answer
    replica = FakeReplica(said(answer) if isinstance(answer, bytes) else answer)
    await replica.start()
    try:
        yield replica
    finally:
        await replica.stop()


@asynccontextmanager
async def router_over(*replicas: FakeReplica, **settings: object):
    """A whole router in front of `replicas`; `settings` use `__` for the dot of a setting's name."""
    wanted = {
        "listen.port": 0,
        "admin.port": 0,
        "admin.allowed_hosts": ["router.test"],  # what `post` calls it
        "replicas": ",".join(replica.url for replica in replicas),
        "tokenizer.where": "text",
        "policy.name": "round-robin",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    config, _ = load(flags={name: ("test", value) for name, value in wanted.items()})
    async with running(config) as up:
        await up.readers.ready()
        yield up


@dataclass(slots=True)
class Answered(Message):
    """One reply."""

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Client:
    """A client that sends and reads raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        async with asyncio.timeout(BOUND_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def exactly(self, size: int) -> bytes:
        async with asyncio.timeout(BOUND_S):
            return await self.reader.readexactly(size)

    async def to(self, mark: bytes) -> bytes:
        async with asyncio.timeout(BOUND_S):
            return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Everything until the other side closes; raises `ConnectionError` when it is reset."""
        async with asyncio.timeout(BOUND_S):
            return await self.reader.read()

    async def reply(self, *, bodiless: bool = False) -> Answered:
        """One reply. The body of a chunked one is given with its framing."""
        answered = Answered(await self.head(), b"")
        length = answered.values(b"Content-Length")
        if bodiless or answered.status in (204, 304):
            return answered
        if length:
            answered.body = await self.exactly(int(length[0]))
        elif answered.values(b"Transfer-Encoding"):
            answered.body = await self._chunks()
        else:
            answered.body = await self.rest()
        return answered

    async def _chunks(self) -> bytes:
        raw = b""
        while True:
            line = await self.to(b"\r\n")
            raw += line
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while (line := await self.to(b"\r\n")) != b"\r\n":
                    raw += line
                return raw + line
            raw += await self.exactly(size + 2)

    def reset(self) -> None:
        self.writer.transport.abort()


def unchunked(raw: bytes) -> bytes:
    """The body of a chunked message, without framing."""
    body = b""
    while raw:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            return body
        body, raw = body + raw[:size], raw[size + 2 :]
    raise AssertionError("the last chunk is missing")


@asynccontextmanager
async def client_of(url: str):
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


BODY = b'{"model":"m","prompt":"hi","max_tokens":1}'


def post(body: bytes = BODY, *fields: bytes, path: bytes = b"/v1/completions", version: bytes = b"1.1") -> bytes:
    """A POST with its body framed by Content-Length."""
    lines = [b"POST " + path + b" HTTP/" + version, b"Host: router.test", *fields, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def posted(url: str, body: bytes = BODY, *fields: bytes, path: bytes = b"/v1/completions") -> Answered:
    """The reply to one POST on a connection of its own."""
    async with client_of(url) as client:
        await client.send(post(body, *fields, path=path))
        return await client.reply()


def load_of(up) -> set[tuple[int, int]]:
    """The different (in-flight requests, pending prefill tokens) of the replicas: `IDLE` when nothing is counted."""
    return {up.fleet.load(name) for name in up.fleet.replicas()}


IDLE = {(0, 0)}


class FakeTransport(asyncio.Transport):
    """A socket that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.paused = False
        self.closed = False
        self.aborted = False

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 5) if name == "peername" else default

    def write(self, data) -> None:
        self.written += bytes(data)

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def set_protocol(self, protocol) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
