"""One connection to a replica: an asyncio Protocol, parsed by llhttp, that passes the replica's bytes on as they are.

The one rule: a connection is used again only when its message ended exactly where its bytes ended. No task wakes up and
nothing is copied for an event of a stream. Not here: which connection, and when to open one (`upstream`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import httptools
from msgspec import Struct

from router.http.messages import Framing, Headers, Reply, without_hop_by_hop

_HEAD_BYTES = 256 * 1024  # a reply head larger than this is no HTTP
_TAIL_BYTES = 32 * 1024  # how much of a reply's end is kept for reading usage
_PIECE_BYTES = 2 * 1024  # what arrives in pieces smaller than this is joined, so that the kept end has a useful length
_ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")


class UpstreamError(Exception):
    """The exchange failed before any byte of a reply went to the client, so another replica may be asked."""

    kind = "failed"


class Unreachable(UpstreamError):  # noqa: N818 -- named after what happened
    """No connection: refused, reset, unknown host, or not within `connect_s`."""

    kind = "unreachable"


class Lost(UpstreamError):  # noqa: N818 -- named after what happened
    """The replica closed the connection, or spoke no HTTP, before a reply began."""

    kind = "lost"


class TimedOut(UpstreamError):  # noqa: N818 -- named after what happened
    """No byte of a reply within `first_byte_s`."""

    kind = "timed_out"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None is no limit. There is no limit on a whole stream."""

    connect_s: float = 5.0
    first_byte_s: float | None = None
    idle_s: float | None = 300.0


class Ending(Struct, frozen=True):
    """How an exchange ended once its reply had begun."""

    status: int
    whole: bool
    """False when the replica broke off: the client's reply was aborted."""
    detail: str
    """Why it was broken off; empty when whole."""
    event_stream: bool
    tail: bytes
    """The end of the body, for reading usage; at most about 64 KiB."""


class Pool(Protocol):
    """Who keeps a connection between two exchanges."""

    def kept(self, connection: "ReplicaConnection") -> None: ...

    def gone(self, connection: "ReplicaConnection") -> None: ...


class ReplicaConnection(asyncio.Protocol):
    """One connection to a replica, serving one exchange at a time; also the `Source` of that exchange's reply."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reply: Reply | None = None

    async def started(self, request: bytes, reply: Reply, first_byte: Callable[[], None], head_only: bool) -> Ending:
        loop = asyncio.get_running_loop()
        self._reply = reply
        self._first_byte: Callable[[], None] | None = first_byte
        self._ending: asyncio.Future[Ending] = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._head = b""
        self._headers: Headers = []
        self._status = 0
        self._reason = b""
        self._head_complete = False
        self._headed = False
        self._paused = False
        self._complete = False
        self._reusable = False
        self._surplus = False
        self._pieces: list[bytes] = []
        self._before_last = self._last = b""
        self._delimited_by_close = False
        self._framed = reply.framed
        self._head_only = head_only
        self._event_stream = False
        self._written_on = False
        self._flowing = False
        self._heard = True
        reply.source = self
        self.transport.write(request)
        return await self._ending

    # -- the socket ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP, so a full transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is None:
            self._pool.gone(self)
        elif self._delimited_by_close and exc is None and self._looks_whole():
            self._reply.end()
            self._end(whole=True)
        else:
            self._broke_off("the replica closed the connection before its reply was whole")

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.transport.abort()  # nobody asked: what it says can't be attributed to any request
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broke_off(f"the replica's bytes are not valid HTTP: {error}")
            return
        if self._surplus:
            self._broke_off("the replica sent bytes beyond the end of its reply")
            return
        if self._flowing:
            reply.write(data)
        elif self._headed:
            self._pass_on(data)
        elif self._status_known():
            self._pass_on(self._start_reply(data))
            if not self._complete:
                reply.flush()
        else:
            self._head += data
            if len(self._head) > _HEAD_BYTES:
                self._broke_off(f"the replica's headers exceed {_HEAD_BYTES} bytes")
            return
        if self._complete:
            self._finish()

    def pause_writing(self) -> None:
        """The request is larger than the socket's buffer: the transport keeps it, nothing more is read meanwhile."""

    # -- the reply -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_complete:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._head_complete = True

    def on_body(self, body: bytes) -> None:
        if len(self._last) + len(body) <= _PIECE_BYTES:  # a stream's small events, or one that was cut in two
            self._last += body
        else:
            self._before_last = self._last
            self._last = body
        if not self._framed:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200:
            self._status, self._reason, self._headers, self._head_complete = 0, b"", [], False
            return
        self._complete = True
        self._reusable = self._parser.should_keep_alive()  # asked later, llhttp says no

    def _status_known(self) -> bool:
        return self._head_complete and self._status >= 200

    def _start_reply(self, data: bytes) -> bytes:
        """Send the head, less what belongs to this connection; return the body bytes that came with it."""
        assert self._reply is not None  # noqa: S101 -- data_received returned otherwise
        data = self._head + data if self._head else data
        position = 0
        while True:  # interim 1xx replies stand before the final one, and empty lines may (RFC 9112 §2.2)
            while data.startswith(b"\r\n", position):
                position += 2
            end = data.index(b"\r\n\r\n", position) + 4
            if data[position + 9 : position + 10] != b"1":
                break
            position = end
        headers = without_hop_by_hop(self._headers)
        framing, chunked = Framing.OPEN, False
        for name, value in self._headers:
            key = name.lower()
            if key == b"transfer-encoding":
                chunked = True
                if self._framed:
                    headers.append((name, value))
                    framing = Framing.CHUNKED
            elif key == b"content-length":
                framing = Framing.SIZED
            elif key == b"content-type":
                self._event_stream = value.startswith(b"text/event-stream")
        if self._head_only:
            self._complete, self._reusable = True, False
            framing = Framing.NONE
        elif framing is Framing.OPEN and not chunked:
            if self._complete:
                framing = Framing.NONE
            else:
                self._delimited_by_close = True
                self._framed = False
        if not self._framed and framing is not Framing.NONE and self._last and not self._pieces:
            self._pieces.append(self._last)
        self._headed = True
        self._head = b""
        self._reply.head(self._status, self._reason or b"Unknown", headers, framing)
        self._written_on = True
        return data[end:]

    def _pass_on(self, data: bytes) -> None:
        assert self._reply is not None  # noqa: S101 -- data_received returned otherwise
        if not data:
            return
        if self._first_byte is not None and self._last and self._status < 400:
            self._first_byte()
            self._first_byte = None
        if self._framed:
            self._reply.write(data)
            self._flowing = self._first_byte is None
        elif self._pieces:
            self._reply.write(b"".join(self._pieces))
            self._pieces.clear()

    def _finish(self) -> None:
        assert self._reply is not None  # noqa: S101 -- data_received returned otherwise
        self._reply.end()
        self._end(whole=True)
        # A reply that came before the whole request was sent leaves the rest of it in the socket.
        if self._reusable and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.resume_reading()
            self._pool.kept(self)
        else:
            self.transport.close()

    def _looks_whole(self) -> bool:
        """A reply that ends with its connection can't be told from a cut one, unless it is a stream and said so."""
        return not self._event_stream or any(end in self._before_last + self._last for end in _ENDS)

    def _broke_off(self, detail: str) -> None:
        reply = self._reply
        if reply is None:
            return
        self.transport.abort()
        if self._written_on:
            # Told before the client's connection goes: its loss would look like a client that left.
            self._end(whole=False, detail=detail)
            reply.abort()
        else:
            self._reply = None
            if not self._ending.done():
                self._ending.set_exception(Lost(detail))

    def _end(self, *, whole: bool, detail: str = "") -> None:
        self._reply = None
        if not self._ending.done():
            tail = (self._before_last[-_TAIL_BYTES:] + self._last)[-2 * _TAIL_BYTES :]
            self._ending.set_result(Ending(self._status, whole, detail, self._event_stream, tail))

    # -- pace ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self.transport.pause_reading()
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._heard = True
        self.transport.resume_reading()

    def silence_checked(self, now_s: float, timeouts: Timeouts) -> None:
        """Give up on a replica that has been silent too long; a client that does not read is not its fault."""
        if self._heard:  # since the last look; asking the time for every event of a stream would cost more
            self._heard, self._heard_s = False, now_s
        silent_s = now_s - self._heard_s
        if self._reply is None or self._paused:
            return
        if not self._written_on:
            if timeouts.first_byte_s is not None and silent_s > timeouts.first_byte_s:
                self._reply = None
                self.transport.abort()
                self._ending.set_exception(TimedOut(f"no reply within {timeouts.first_byte_s:g} s"))
        elif timeouts.idle_s is not None and silent_s > timeouts.idle_s:
            self._broke_off(f"the replica sent nothing for {timeouts.idle_s:g} s")
