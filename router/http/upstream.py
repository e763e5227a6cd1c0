"""The way to one replica: its address, its idle connections, and one exchange at a time on each.

`exchange` sends one request and returns when its reply has been passed on. A kept connection that turns out closed is
no failure: the request goes out once more on a new one. Not here: bytes (`connection`), and whether to try another.
"""

import asyncio
import socket
import ssl
from typing import Final

from router.http.connection import ReplicaConnection
from router.http.exchange import Attempt, Lost, Timeouts, Unreachable, UpstreamError
from router.http.messages import Ending, Reply
from router.http.reading import READ_BYTES

_AHEAD_BYTES: Final = 32 * 1024  # what the system takes ahead is twice this, and all of it may come in one read


class Upstream:
    """One replica's address and its idle connections."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeouts: Timeouts,
        tls: ssl.SSLContext | None = None,
        base_path: bytes = b"",
        headers: bytes = b"",
        client_key: str = "auto",
    ) -> None:
        """`headers` are lines every request gets after its Host, each after the end of the line before.

        `client_key` says what becomes of a client's credential on its way there, for whoever writes the request.
        """
        self._host = host
        self._port = port
        self._tls = tls
        self.timeouts = timeouts
        self.space = memoryview(bytearray(READ_BYTES))
        self._idle: list[ReplicaConnection] = []
        self._busy: dict[ReplicaConnection, Reply] = {}
        """Whose reply each connection brings."""
        self._reaching: dict[asyncio.Timeout, float] = {}
        """When connections were begun that are not there yet."""
        self._heard = False
        self._heard_s = 0.0
        self._sweeper: asyncio.TimerHandle | None = None
        shown = f"[{host}]" if ":" in host else host
        self.authority = f"{shown}:{port}".encode()
        self.base_path = base_path
        self.headers = headers
        self.client_key = client_key

    def __repr__(self) -> str:
        return f"<Upstream {self.authority.decode()} busy={len(self._busy)} idle={len(self._idle)}>"

    async def exchange(self, request: bytes, reply: Reply, attempt: Attempt, *, head_only: bool = False) -> Ending:
        """Send `request`, pass the answer to `reply` unless `attempt` declines it, return when it has ended.

        `head_only` is for HEAD, whose answer has no body whatever its headers say. Raises an `UpstreamError` only
        while nothing was passed on. Cancelling closes the connection to the replica.
        """
        kept = self._reusable()
        while True:
            connection = await self._connected() if kept is None else kept
            self._busy[connection] = reply
            if self._sweeper is None:
                self._schedule_sweep()
            try:
                return await connection.started(request, reply, attempt, head_only)
            except asyncio.CancelledError:
                if self._busy.get(connection) is reply:
                    connection.transport.abort()
                raise
            except Lost:
                # A kept connection may have been closed at the very moment it was used (RFC 9112 §9.3.1): that is
                # no failure of the replica, so ask it once more on a new one.
                if kept is None:
                    raise
                kept = None
            finally:
                self._ended(connection, reply)

    def _reusable(self) -> "ReplicaConnection | None":
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connected(self) -> "ReplicaConnection":
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(self.timeouts.connect_s)
        began_s = self._reaching[limit] = loop.time()
        try:
            async with limit:
                _, connection = await loop.create_connection(
                    lambda: ReplicaConnection(self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise Unreachable(f"no connection within {loop.time() - began_s:.1f} s") from error
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(_said(error)) from error
        finally:
            del self._reaching[limit]
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _AHEAD_BYTES)
        return connection

    def _ended(self, connection: "ReplicaConnection", reply: Reply) -> None:
        if self._busy.get(connection) is reply:
            del self._busy[connection]
            self._heard = self._heard or connection.answered
        else:  # it was put back, and another exchange has it: that began before this task woke up
            self._heard = True
        reply.source = None

    def kept(self, connection: "ReplicaConnection") -> None:
        self._idle.append(connection)

    def gone(self, connection: "ReplicaConnection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def heard(self) -> None:
        """The replica has answered somebody."""
        self._heard = True

    def silent_s(self, now_s: float) -> float:
        """For how long the replica has said nothing at all though exchanges wait for it; 0 when none does.

        As precise as this is asked: the first look at an exchange or an event is taken for its time.
        """
        if self._heard:
            self._heard, self._heard_s = False, now_s
        last_s, oldest_s = self._heard_s, min(self._reaching.values(), default=now_s)
        for connection in self._busy:
            if connection.paused:
                continue  # by a client that does not read, so this says nothing of the replica
            heard_s = connection.heard_s(now_s)
            if heard_s == now_s and connection.answered:
                self._heard_s = now_s
                return 0.0
            if connection.answered:
                last_s = max(last_s, heard_s)
            oldest_s = min(oldest_s, heard_s)
        return now_s - max(last_s, oldest_s)

    def given_up(self, error: UpstreamError) -> None:
        """The replica hangs: let other replicas have what it has not begun to answer."""
        for connection in list(self._busy):
            connection.given_up(error)
        for limit in list(self._reaching):
            if not limit.expired():
                limit.reschedule(0.0)

    def cut_off(self, silent_s: float, now_s: float, detail: str) -> None:
        """The replica is going: break off what it has said nothing to for so long."""
        for connection in list(self._busy):
            if now_s - connection.heard_s(now_s) >= silent_s:
                connection.cut_off(detail)

    def close(self) -> None:
        """Close idle connections; what is busy goes on, and is given up if it falls silent."""
        for connection in list(self._idle):
            connection.transport.close()
        self._idle.clear()
        if self._sweeper is not None and not self._busy:  # what goes on may fall silent still
            self._sweeper.cancel()
            self._sweeper = None

    def _schedule_sweep(self) -> None:
        """Look for silent replicas once in a while: one timer for all connections, none per event."""
        limits = [limit for limit in (self.timeouts.first_byte_s, self.timeouts.idle_s) if limit is not None]
        if limits:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(min(1.0, min(limits) / 4), self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = None
        for connection in list(self._busy):
            _silence_checked(connection, loop.time(), self.timeouts)
        if self._busy:
            self._schedule_sweep()


def _silence_checked(connection: ReplicaConnection, now_s: float, timeouts: Timeouts) -> None:
    """Give up on a replica that has been silent too long."""
    silent_s = now_s - connection.heard_s(now_s)
    if not connection.headed:
        if timeouts.first_byte_s is not None and silent_s > timeouts.first_byte_s:
            connection.cut_off(f"no reply within {timeouts.first_byte_s:g} s")
    elif timeouts.idle_s is not None and silent_s > timeouts.idle_s:
        connection.cut_off(f"the replica sent nothing for {timeouts.idle_s:g} s")


def _said(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
