"""Everything on the ports that is not a POST on the data plane: an aiohttp application for each port.

The public one answers `/health` and `/v1/models` itself and passes everything else through the same gateway; the admin
one serves `/metrics`, `/explain` and `/state`. Not here: routing.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http import StreamWriter

from router.errors import BodyTooLarge, NoReplicaAvailable, NotServed, RequestError
from router.gateway import Gateway
from router.health import Watcher
from router.http.heads import without_hop_by_hop
from router.http.listener import Serve
from router.http.messages import Call, Framing, Headers, Source, origin_form
from router.kv_events import KvEvents, KvState
from router.side_connection import error_response, followed

_QUEUED_BYTES = 8 * 1024  # a reply that waits for a slow client stops the replica at this much

Json = dict[str, Any]


class QueuedReply:
    """A `Reply` whose parts wait for an aiohttp handler to send them on."""

    framed = False

    def __init__(self) -> None:
        self.source: Source | None = None
        self.status = 0
        self.reason = b""
        self.headers: Headers = []
        self.framing = Framing.OPEN
        self._parts: deque[bytes] = deque()
        self._size_bytes = 0
        self._changed = asyncio.Event()
        self._ended = False
        self._aborted = False

    def head(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> None:
        self.status, self.reason, self.headers, self.framing = status, reason, headers, framing
        self._changed.set()

    def verbatim(self) -> bool:
        return False

    def flush(self) -> None:
        """What is at hand is on its way already."""

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._size_bytes += len(data)
        if self._size_bytes > _QUEUED_BYTES and self.source is not None:
            self.source.pause()
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def abort(self) -> None:
        self._aborted = not self._ended
        self._changed.set()

    async def sent(self, request: web.Request) -> web.StreamResponse:
        """Pass the parts on as they come. A broken reply breaks the client's connection too."""
        while not self.status and not self._aborted:
            await self._wait()
        response = web.StreamResponse(status=self.status or 502, reason=self.reason.decode("latin-1"))
        for name, value in self.headers:
            if name.lower() != b"transfer-encoding":
                response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
        if request.version < (1, 1):
            response.force_close()
        elif response.content_length is None and self.framing is not Framing.NONE:
            response.enable_chunked_encoding()
        writer = await response.prepare(request)
        assert isinstance(writer, StreamWriter)  # noqa: S101 -- what aiohttp writes to a socket with
        while True:
            while self._parts:
                size_bytes = len(self._parts[0])
                if request.method != "HEAD":
                    await writer.write(self._parts.popleft(), drain=False)  # that at 64 KiB would hold on to the part
                    await writer.drain()
                else:
                    self._parts.popleft()
                self._size_bytes -= size_bytes  # only now: until then the transport may hold it
            if self.source is not None and self._size_bytes <= _QUEUED_BYTES:
                self.source.resume()
            if self._aborted:
                if request.transport is not None:
                    request.transport.abort()
                return response
            if self._ended:
                await response.write_eof()
                return response
            await self._wait()

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()


async def passed_on(serve: Serve, request: web.Request) -> web.StreamResponse:
    """Any method, any path, through the gateway: the task that serves it ends when the client leaves."""
    reply = QueuedReply()
    try:
        call = await _call(request)
    except BodyTooLarge as error:
        return error_response(error)
    serving = asyncio.ensure_future(serve(call, reply))
    serving.add_done_callback(lambda _: reply.abort())  # after `end` this says nothing; a fault must not wait for ever
    try:
        response = await reply.sent(request)
        await serving
    finally:
        serving.cancel()
    return response


async def _call(request: web.Request) -> Call:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise BodyTooLarge.over(request.client_max_size) from None
    dropped = (b"host", b"content-length", b"expect")
    headers = [pair for pair in without_hop_by_hop(list(request.raw_headers)) if pair[0].lower() not in dropped]
    return Call.of(
        method=request.method.encode(),
        target=origin_form(request.raw_path.encode("latin-1")),
        headers=headers,
        body=body,
        host=request.headers.get("Host", "").encode("latin-1"),
        peer=request.remote or "unknown",
    )


def state(watcher: Watcher, events: KvEvents | None = None) -> Json:
    """`/health` and `/state`: how the replicas stand, and with `events` how well their caches are known."""
    states = watcher.states()
    caches = {} if events is None else {one.name: {"cache": _cache(one)} for one in events.states()}
    return {
        "replicas_open": sum(one.usable for one in states),
        "replicas": [
            {
                "name": one.name,
                "url": one.url,
                "state": one.state,
                "reason": one.reason,
                "models": one.models,
                "restarts": one.restarts,
                **caches.get(one.name, {}),
            }
            for one in states
        ],
    }


def _cache(known: KvState) -> Json:
    """How far a replica's KV events can be believed."""
    standing = known.standing
    return {
        "known": standing.word,
        "reason": standing.reason,
        "degraded": standing.degraded,
        "batches": known.batches,
        "faults": known.faults,
    }


def json_response(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def public_application(
    gateway: Gateway, serve: Serve, *, models: Callable[[], bytes], health: Callable[[], Json], body_bytes: int
) -> web.Application:
    """The application behind the data plane. Connections it was handed keep using it, so it takes POSTs too."""

    async def healthy(_: web.Request) -> web.Response:
        state = health()
        return json_response(state, 200 if state["replicas_open"] and not state["stopping"] else 503)

    async def served(request: web.Request) -> web.Response:
        try:
            gateway.tenants.guest(await _call(request))
        except RequestError as refused:
            return error_response(refused)
        body = models()
        if not gateway.models.names:
            error = NoReplicaAvailable("no replica has told its models yet; try again in 2 s", retry_after_s=2)
            return error_response(error)
        return web.Response(body=body, content_type="application/json")

    async def anything(request: web.Request) -> web.StreamResponse:
        return await passed_on(serve, request)

    application = web.Application(client_max_size=body_bytes, middlewares=[followed])
    application.router.add_get("/health", healthy)
    application.router.add_get("/ready", healthy)
    application.router.add_get("/v1/models", served)
    application.router.add_route("*", "/{path:.*}", anything)
    return application


def admin_application(
    gateway: Gateway,
    *,
    metrics: Callable[[], Awaitable[bytes]],
    health: Callable[[], Json],
    body_bytes: int,
    routes: Iterable[web.RouteDef] = (),
) -> web.Application:
    """Metrics, dry runs and `routes`, for operators only: they tell what is cached, which tenants must not learn."""

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=await metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def explained(request: web.Request) -> web.Response:
        path = request.query.get("path", "/v1/chat/completions")
        try:
            call = await _call(request)
            told = await gateway.explained(
                Call.of(b"POST", path.encode(), call.headers, call.body, call.host, call.peer)
            )
        except RequestError as error:
            return error_response(error)
        return json_response(told)

    async def state(_: web.Request) -> web.Response:
        return json_response(health())

    async def unknown(_: web.Request) -> web.Response:
        return error_response(NotServed(f"the admin port serves {', '.join(served)}"))

    application = web.Application(client_max_size=body_bytes, middlewares=[followed])
    application.router.add_get("/metrics", exposition)
    application.router.add_get("/state", state)
    application.router.add_get("/health", state)
    application.router.add_post("/explain", explained)
    application.add_routes(routes)
    paths = application.router.resources()
    served = [f"{one.method} {path.canonical}" for path in paths for one in path if one.method != "HEAD"]
    application.router.add_route("*", "/{path:.*}", unknown)
    return application
