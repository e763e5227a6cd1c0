"""The client's side: an asyncio Protocol that reads requests with llhttp and writes replies straight to the socket.

Only `POST` is served here. A connection whose next request is anything else is handed, with the bytes read so far, to
another Protocol (the aiohttp application), and stays there. One request at a time; what a client pipelines waits.
The one rule: a reply that was not finished is never made to look finished.
"""

import asyncio
import logging
from collections import deque
from typing import Final

import httptools

from router.errors import BadRequest, BodyTooLarge, ClientTooSlow, HeadTooLarge, RequestError
from router.http.heads import minor_of, request_head, without_upgrade
from router.http.listener import Listener
from router.http.messages import Call, Framing, Headers, Source, joined, origin_form
from router.http.patience import BODY, HEAD, KEPT, Progress

_log: Final = logging.getLogger("router.http")
_KEPT_WHILE_BUSY_BYTES: Final = 64 * 1024  # bytes a client may send ahead before its socket is no longer read
_UNKNOWN_BYTES: Final = 64 * 1024  # how much of a body is taken before it is asked who sends it
_LINGER_S: Final = 2.0  # an early error waits so long for the client to stop sending: a reset would eat the answer
_PIECES: Final = 1024  # of a body, and one for each KiB: more are tiny, and are joined
_UNSENT_BYTES: Final = 2 * 1024  # what a client has not taken, beyond which its replica is no longer read
_POST: Final = b"POST "
_NO_POST: Final = Call.of(b"", b"", [], b"", b"", "")


class ClientConnection(asyncio.Protocol):
    """One client socket; also the `Reply` of the request being served on it."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self._limits = listener, listener.limits
        self._parser = httptools.HttpRequestParser(self)
        self._ahead = b""
        self._waiting: deque[tuple[Call, bool, int]] = deque()
        self._broken: RequestError | None = None
        self._task: asyncio.Task[None] | None = None  # serves one request after the other: a task for each costs more
        self._call: Call | None = None
        self._called: asyncio.Future[None] | None = None
        self._boundary = self.framed = True
        self._requests = self._body_bytes = self._fed_bytes = 0
        self._head_open = self._lingering = self._writing_paused = False
        self._headers: Headers = []
        self._keep_alive, self._minor, self._chunking, self._kept = True, 1, False, b""
        self.source: Source | None = None

    # -- the socket ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP, so a full transport
        self._send, self._leaves = self._transport.write, self._transport.is_closing  # looked up once, not per event
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else "unknown"
        self._listener.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._listener.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._call is not None:
            self._ahead += data
            if len(self._ahead) > _KEPT_WHILE_BUSY_BYTES:
                self._transport.pause_reading()
            return
        self._read(self._ahead + data if self._ahead else data)

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self.source is not None:
            self.source.pause()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self.source is not None:
            self.source.resume()

    # -- reading requests ------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        self._ahead = b""
        if self._boundary:
            if len(data) < len(_POST) and _POST.startswith(data):
                self._ahead = data
                return
            if not data.startswith(_POST):
                self._hand_over(data)
                return
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._broken = self._broken or BadRequest(f"the request is not valid HTTP: {error}")
        except RequestError as error:
            self._broken = error
        if self._call is None:
            self._next()

    def _feed(self, data: bytes, repeated: bool = False) -> None:
        was_open, boundary, before, body_bytes = self._head_open, self._boundary, self._requests, self._body_bytes
        self._fed_bytes = len(data) + (self._fed_bytes if was_open else 0)
        try:
            self._parser.feed_data(data)
            if self._head_open:
                untold = was_open or (boundary and self._requests == before + 1)  # all of the data is this head's
            else:  # trailers, or what may stand beside a chunk's length
                untold = not self._boundary and self._requests == before and self._body_bytes == body_bytes
            if untold:  # llhttp tells only of whole headers; one without an end must not grow
                self._untold_bytes += len(data)
                if self._untold_bytes > self._limits.header_bytes:
                    raise self._refused(HeadTooLarge.over(self._limits.header_bytes))
        except httptools.HttpParserUpgrade as upgrade:
            if not self._waiting[-1][0].method:  # CONNECT: what comes behind it is no HTTP
                return
            # A server may ignore Upgrade (RFC 9110 §7.8), but llhttp stops reading there: say it again without.
            self._waiting.pop()
            if repeated:  # each would be one step deeper, and one more copy of the data
                raise self._refused(BadRequest("more than one request with Upgrade was sent ahead")) from None
            head = b"%b %b HTTP/1.1\r\n%b" % (self._parser.get_method(), self._url, without_upgrade(self._headers))
            self._parser = httptools.HttpRequestParser(self)
            self._feed(head + data[upgrade.args[0] :], repeated=True)

    def on_message_begin(self) -> None:
        self._boundary, self._head_open = False, True
        self._requests += 1
        self._untold_bytes = self._body_bytes = 0
        self._url, self._headers = b"", []
        self._body: list[bytes | bytearray] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_open:  # a trailer is no header: what it says came too late to be checked
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_open = False
        if self._fed_bytes > self._limits.header_bytes:  # the head's and whatever came with it
            size_bytes = len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers])
            if size_bytes > self._limits.header_bytes:
                raise self._refused(HeadTooLarge.over(self._limits.header_bytes))
        self._untold_bytes = 0
        try:
            self._passed_on, named = request_head(self._headers, self._limits.body_bytes)
            self._named = named
            if b"host" not in named and self._parser.get_http_version() != "1.0":  # RFC 9112 §3.2
                raise BadRequest("the request has no Host header; send exactly one")
        except RequestError as error:
            raise self._refused(error) from None
        waits = b"expect" in named and named[b"expect"].lower() == b"100-continue"
        if waits and self._call is None and not self._waiting:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        before = self._body_bytes
        self._body_bytes += len(body)
        self._untold_bytes = 0
        if self._body_bytes > self._limits.body_bytes:
            raise self._refused(BodyTooLarge.over(self._limits.body_bytes))
        if before <= _UNKNOWN_BYTES < self._body_bytes:
            try:
                self._listener.known(self._passed_on)
            except RequestError as error:
                raise self._refused(error) from None
        self._body.append(body)
        if len(self._body) > _PIECES + self._body_bytes // 1024:
            self._body = joined(self._body)

    def _refused(self, error: RequestError) -> RequestError:
        """llhttp wraps what a callback raises, so the reason is kept aside."""
        self._broken = error
        return error

    def on_message_complete(self) -> None:
        self._boundary = True
        keep_alive = self._parser.should_keep_alive()  # only inside this callback does llhttp know
        if (method := self._parser.get_method()) != b"POST":  # such a client meets a closed connection and asks again
            self._waiting.append((_NO_POST, False, 1))
            return
        # A client that says nothing of its connection and may keep it speaks HTTP/1.1: asking would cost a text.
        try:
            minor = 1 if keep_alive and b"connection" not in self._named else minor_of(self._parser.get_http_version())
        except RequestError as error:
            raise self._refused(error) from None
        body = bytes(self._body[0]) if len(self._body) == 1 else b"".join(self._body)
        host = self._named.pop(b"host", b"")
        call = Call(method, origin_form(self._url), self._passed_on, body, host, self._peer, self._named)
        self._body = []
        self._waiting.append((call, keep_alive, minor))

    def _next(self) -> None:
        """Serve the next request that is complete, or say why none will come."""
        if self._waiting:
            call, self._keep_alive, self._minor = self._waiting.popleft()
            if not call.method:
                self._transport.close()
                return
            self.framed = self._minor == 1
            self._chunking, self._kept = False, b""
            self._call = call
            if self._called is not None:
                self._called.set_result(None)
            elif self._task is None:  # made so, since a loop would make up a name for each
                self._task = asyncio.Task(self._served(), loop=self._loop, name="client")
        elif self._broken is not None:
            self._refuse(self._broken)

    async def _served(self) -> None:
        while self._call is not None:
            try:
                await self._listener.serve(self._call, self)
            except asyncio.CancelledError:
                self._transport.abort()
                raise
            except Exception:
                _log.exception("a request failed by a fault of the router; its connection is closed")
                self._transport.abort()
            self._call = self.source = None
            self._advance()
            if self.busy:  # with what was sent ahead: others have their turn first
                await asyncio.sleep(0)
            else:
                self._called = self._loop.create_future()
                await self._called
                self._called = None

    def _advance(self) -> None:
        """The exchange is over: close, or go on with what the client sent meanwhile."""
        if not self._keep_alive or self._transport.is_closing():
            self._transport.close()
            return
        if len(self._ahead) > _KEPT_WHILE_BUSY_BYTES:
            self._transport.resume_reading()
        if self._waiting or self._broken is not None:
            self._next()
        elif self._ahead:
            self._read(self._ahead)

    def _hand_over(self, data: bytes) -> None:
        self.connection_lost(None)
        protocol = self._listener.otherwise()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    # -- writing replies -------------------------------------------------------------------------------------------

    def head(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> None:
        parts = [b"HTTP/1.1 %d %b" % (status, reason)]
        for name, value in headers:
            parts.append(b"%b: %b" % (name, value))
        if self._minor == 0:  # HTTP/1.0 knows no chunks: the end of the connection ends the body
            self._keep_alive = self._keep_alive and framing is Framing.NONE
        elif framing is Framing.OPEN:
            self._chunking = True
            parts.append(b"Transfer-Encoding: chunked")
        parts.append(b"\r\n" if self._keep_alive else b"Connection: close\r\n\r\n")
        self._kept = b"\r\n".join(parts)
        self._slowed()

    def verbatim(self) -> bool:
        self._slowed()
        return self._minor == 1 and self._keep_alive

    def _slowed(self) -> None:
        """A reply begins while the client has still to take the one before it."""
        if self._writing_paused and self.source is not None:
            self.source.pause()

    def write(self, data: bytes) -> None:
        if self._chunking and data:  # an empty chunk would end the reply
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._kept:
            data, self._kept = self._kept + data, b""
        if not self._leaves():  # the client left; the task that serves it learns of it next
            self._send(data)

    def flush(self) -> None:
        if self._kept:
            self.write(b"")

    def end(self) -> None:
        if self._chunking:
            self._chunking = False
            self.write(b"0\r\n\r\n")
        else:
            self.flush()

    def abort(self) -> None:
        self._transport.abort()

    def _refuse(self, error: RequestError) -> None:
        """Answer bytes that are no request, and let the answer arrive before the connection goes."""
        self._keep_alive, self._lingering = False, True
        head = [*error.headers, (b"Content-Length", b"%d" % len(error.body)), *self._listener.told(self._headers)]
        self.head(error.status, error.reason.encode(), head, Framing.SIZED)
        self.write(error.body)
        self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self._transport.abort)

    def progress(self) -> Progress | None:
        """How far the client is; None while it waits for the router."""
        if self._call is not None or self._lingering:
            return None
        if self._boundary:
            return (HEAD if self._ahead else KEPT, self._requests, 0)
        return (HEAD if self._head_open else BODY, self._requests, self._body_bytes)

    def given_up(self, phase: str, after_s: float) -> None:
        self._transport.close() if phase == KEPT else self._refuse(ClientTooSlow.over(phase, after_s))

    def close_when_idle(self) -> None:
        """Draining: finish what is being served, then close."""
        self._keep_alive = False
        if self._call is None:
            self._transport.close()

    @property
    def busy(self) -> bool:
        return self._call is not None
