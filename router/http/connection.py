"""One connection to a replica: an asyncio Protocol, parsed by llhttp, that passes the replica's bytes on as they are.

The one rule: a connection is used again only when its message ended exactly where its bytes ended. No task wakes up and
nothing is copied for an event of a stream. Not here: which connection, and when to open one (`upstream`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

import httptools

from router.http.exchange import NOBODY, Attempt, BrokenOff, Lost, TimedOut, UpstreamError, ends_a_stream
from router.http.heads import field_of, head_end, is_plain, without_hop_by_hop
from router.http.messages import Ending, Framing, Headers, Reply, without_empty_lines
from router.http.reading import READ_BYTES, Pool, SmallReads, read_by
from router.http.tail import STREAM_TAIL_BYTES, TAIL_BYTES, Tail

_HEAD_BYTES: Final = 256 * 1024  # a reply head larger than this is no HTTP
_SHORT_BYTES: Final = 16 * 1024  # a measured reply up to this size is passed on once it is whole
_STATUS_BYTES: Final = len(b"HTTP/1.1 200 \r\n")  # of a status line without its reason
_FIRST_BYTES: Final = 16  # of any other reply, if its first event is not shorter: enough to tell what that is


def _nowhere(_: bytes) -> None: ...


class ReplicaConnection(asyncio.Protocol):
    """One connection to a replica, serving one exchange at a time; also the `Source` of that exchange's reply."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reply: Reply | None = None
        self._write: Callable[[bytes], None] = _nowhere
        self._small = False
        self._ending: asyncio.Future[Ending] | None = None
        self._feed: Final[Callable[[bytes], None]] = (parser := httptools.HttpResponseParser(self)).feed_data
        self._parser: Final = parser
        self._tail = Tail()
        self._loop = asyncio.get_running_loop()

    def started(self, request: bytes, reply: Reply, attempt: Attempt, head_only: bool) -> asyncio.Future[Ending]:
        """Send a request; what is returned is done when its reply has ended."""
        self._reply, self._write = reply, reply.write
        self._attempt = attempt
        self._ear = attempt.ear
        ending = self._ending = self._loop.create_future()
        self._head = self._first = self._reason = b""
        self._tail.begun()
        self._wanted_bytes, self._status = _FIRST_BYTES, 0
        self._headers: Headers = []
        self._head_complete = self.headed = self._begun = self._flowing = False
        self._complete = self._reusable = self._surplus = False
        self._event_stream = self._delimited_by_close = self.paused = False
        self._pieces: list[bytes] = []
        self._framed = reply.framed
        self._head_only = head_only
        self._heard = True
        reply.source = self
        self.transport.write(request)
        return ending

    # -- the socket ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP, so a full transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is None:
            self._pool.gone(self)
            return
        if exc is None and not self.headed and self._status_known() and not self._measured():
            self._wanted_bytes = 0
            self._begin(b"")
        said = not self._event_stream or ends_a_stream(self._tail.whole())
        if self._reply is not None and self._delimited_by_close and exc is None and said:
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
        if len(data) > READ_BYTES:
            self._read_little()
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broke_off(f"the replica's bytes are not valid HTTP: {error}")
            return
        if self._surplus:
            self._broke_off("the replica sent bytes beyond the end of its reply")
            return
        if self._complete:
            data = without_empty_lines(data, self._headers, self._tail.last)
        if self._flowing:
            self._write(data)
        elif self.headed:
            self._pass_on(data)
        elif self._ready():
            self._begin(data)
        else:
            self._head += data
            if len(self._head) > _HEAD_BYTES:
                self._broke_off(f"the replica's headers exceed {_HEAD_BYTES} bytes")
            return
        if self._complete and self._reply is not None:
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
            if len(name) == 14 and name.lower() == b"content-length":
                self._wanted_bytes = min(int(value), _SHORT_BYTES)

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._head_complete = True

    def on_body(self, body: bytes) -> None:
        if not self.headed:
            self._first += body
        self._tail.add(body, self._ear, STREAM_TAIL_BYTES if self._event_stream else TAIL_BYTES)
        if not self._framed:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200:
            self._status, self._reason, self._headers, self._head_complete = 0, b"", [], False
            self._wanted_bytes = _FIRST_BYTES
            return
        self._complete = True
        self._reusable = self._parser.should_keep_alive()  # asked later, llhttp says no

    def _status_known(self) -> bool:
        return self._head_complete and self._status >= 200

    def _measured(self) -> bool:
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def _ready(self) -> bool:
        """Whether enough of the reply is here to say what becomes of it: some of its body, not only its head.

        An engine sends the head of a stream long before the first token; until then another replica may still take
        the request over.
        """
        first = self._first
        enough = self._complete or self._head_only or len(first) >= self._wanted_bytes
        return (enough or (self._wanted_bytes == _FIRST_BYTES and first.endswith(b"\n\n"))) and self._status_known()

    def _begin(self, data: bytes) -> None:
        """Pass the reply's beginning on, unless whoever sent the request would rather ask another replica."""
        declined = self._attempt.declined(self._status, self._headers, self._first, self._complete)
        if declined is None:
            reply = self._reply
            assert reply is not None  # noqa: S101 -- data_received returned otherwise
            self._pass_on(self._start_reply(reply, data))
            if not self._complete and self._reply is not None:
                reply.flush()
            return
        self.given_up(declined, closing=not self._complete)

    def _start_reply(self, reply: Reply, data: bytes) -> bytes:
        """Send the head, less what belongs to this connection; return the bytes that are left to be sent."""
        data = self._head + data if self._head else data
        self.headed = True
        self._head = b""
        headers: Headers = []
        framing, chunked, names_more = Framing.OPEN, False, False
        size_bytes = _STATUS_BYTES + len(self._reason)
        for name, value in self._headers:
            field = field_of(name)
            key = field.key
            size_bytes += len(name) + len(value) + 4
            if not field.hop_by_hop:
                headers.append((name, value))
                if key == b"content-length":
                    framing = Framing.SIZED
                elif key == b"content-type":
                    self._event_stream = value.startswith(b"text/event-stream")
            elif key == b"transfer-encoding":
                chunked = True
                if self._framed:
                    headers.append((name, value))
                    framing = Framing.CHUNKED
            elif key == b"connection":
                names_more = names_more or value.lower() not in (b"keep-alive", b"close")
        if (
            len(headers) == len(self._headers)
            and (framing is Framing.SIZED or framing is Framing.CHUNKED)
            and self._framed
            and not self._head_only
            and is_plain(data, size_bytes + 2)
            and reply.verbatim()
        ):
            self._first = b""
            return data
        if names_more:
            kept = without_hop_by_hop(self._headers)
            headers = [field for field in headers if field in kept or field[0].lower() == b"transfer-encoding"]
        if self._head_only:
            self._complete, self._reusable = True, False
            framing = Framing.NONE
        elif framing is Framing.OPEN and not chunked:
            if self._complete:
                framing = Framing.NONE
            else:
                self._delimited_by_close = True
                self._framed = False
        if not self._framed and framing is not Framing.NONE and self._first:
            self._pieces = [self._first]
        self._first = b""
        reply.head(self._status, self._reason or b"Unknown", headers, framing)
        return data[head_end(data) :]

    def _pass_on(self, data: bytes) -> None:
        assert self._reply is not None  # noqa: S101 -- data_received returned otherwise
        if not data:
            return
        if not self._begun and self._tail.size_bytes and self._status < 400:
            self._begun = True
            self._attempt.began()
        if self._framed:
            self._reply.write(data)
            self._flowing = self._begun
        elif self._pieces:
            self._reply.write(b"".join(self._pieces))
            self._pieces.clear()

    def _finish(self) -> None:
        assert self._reply is not None  # noqa: S101 -- data_received returned otherwise
        self._reply.end()
        self._end(whole=True)
        self._put_back()

    def _put_back(self) -> None:
        # A reply that came before the whole request was sent leaves the rest of it in the socket.
        if self._reusable and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            if self._small:
                self._small = False
                read_by(self.transport, self)
            self._attempt, self._ear = NOBODY, None  # while idle, hold nothing of the last one
            self._tail.begun()
            self._pool.kept(self)
        else:
            self.transport.close()

    def _broke_off(self, detail: str, *, given_up: bool = False) -> None:
        reply = self._reply
        if reply is None:
            return
        self.transport.abort()
        if self.headed:
            # Told before the client's connection goes: its loss would look like a client that left.
            self._end(whole=False, detail=detail, given_up=given_up)
            reply.abort()
        else:
            self.given_up(BrokenOff(detail) if self._head else Lost(detail))

    def given_up(self, error: UpstreamError, *, closing: bool = True) -> None:
        """End an exchange of which nothing was passed on; whoever waits for it is told `error`."""
        if self._reply is None or self.headed:
            return
        ending, self._reply, self._ending, self._write = self._ending, None, None, _nowhere
        if closing:
            self.transport.abort()
        else:
            self._put_back()
        if ending is not None and not ending.done():
            ending.set_exception(error)

    def _end(self, *, whole: bool, detail: str = "", given_up: bool = False) -> None:
        ending, self._reply, self._ending, self._write = self._ending, None, None, _nowhere
        if ending is not None and not ending.done():
            tail, said = self._tail.whole(), self._tail.said()
            ending.set_result(Ending(self._status, whole, detail, self._event_stream, tail, given_up, said))

    # -- pace ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self._read_little()  # what waits meanwhile in the socket must not come in one piece
        self.transport.pause_reading()
        self.paused = True

    def _read_little(self) -> None:
        if not self._small:
            self._small = True
            read_by(self.transport, SmallReads(self, self._pool.space))

    def resume(self) -> None:
        self.paused = False
        self._heard = True
        self.transport.resume_reading()

    @property
    def answered(self) -> bool:
        """Whether the replica has sent anything in this exchange."""
        return self.headed or bool(self._head)

    def heard_s(self, now_s: float) -> float:
        """When something was last heard in this exchange, or it began, as precise as this is asked.

        Asking the clock for every event of a stream would cost more. A client that does not read is heard, too.
        """
        if self._heard or self.paused:
            self._heard, self._heard_s = False, now_s
        return self._heard_s

    def cut_off(self, detail: str) -> None:
        """The replica will say no more: break the exchange off, or let another replica have it."""
        if self.headed:
            self._broke_off(detail, given_up=True)
        else:
            self.given_up(TimedOut(detail))
