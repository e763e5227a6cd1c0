"""The router's two ports: opened, looked after, and closed without losing what runs.

The one rule: a connection that asks for nothing costs no more than itself, and none can hold a place for ever. Not
here: what is served (`gateway`, `web`).
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiohttp import web

from router.config import Config
from router.http.listener import Listener, Serve, Told
from router.http.messages import Headers, Limits
from router.http.patience import Client, Patience, Sweep
from router.http.server import ClientConnection
from router.side_connection import SideConnection, taking_over

_BACKLOG = 4096  # connections that may arrive at once; a short queue costs the late ones a second
_ENDING_S = 0.5  # what is still served when the router ends has had its time to drain


@dataclass(frozen=True, slots=True)
class Doors:
    """The client port."""

    url: str
    sweep: Sweep
    _connections: set[ClientConnection]
    _server: asyncio.Server
    _taken_over: web.Server
    """Serves the connections that asked for something else than a POST."""

    async def drained(self, within_s: float) -> bool:
        """Take no new requests, let running ones end; True when all did in time."""
        self._server.close()
        self._taken_over.pre_shutdown()
        for connection in list(self._connections):
            connection.close_when_idle()
        try:
            async with asyncio.timeout(within_s):
                while self._busy():  # noqa: ASYNC110 -- once in a process's life, and no event tells of it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            for handler in self._taken_over.connections:
                handler.force_close()
            return False
        return True

    def _busy(self) -> bool:
        return bool(self._taken_over.connections) or any(one.busy for one in self._connections)


async def listening(
    stack: AsyncExitStack,
    config: Config,
    serve: Serve,
    known: Callable[[Headers], None],
    application: web.Application,
    tls: ssl.SSLContext | None,
    told: Told,
) -> Doors:
    """The client port: the data plane, and behind it the application for everything that is not a POST.

    `known` and `told` are those of a `Listener`.
    """
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=_ENDING_S)
    taken_over = await _set_up(stack, runner)
    connections: set[ClientConnection] = set()
    limits = Limits(config.limits.header_bytes, config.limits.body_bytes)
    listener = Listener(serve, limits, taking_over(taken_over, limits.header_bytes), connections, known, told)

    def clients() -> Iterable[Client]:
        return [*connections, *(one for one in taken_over.connections if isinstance(one, SideConnection))]

    def connection() -> ClientConnection:
        return ClientConnection(listener)

    sweep = await stack.enter_async_context(Sweep(patience_of(config), clients))
    server, url = await _opened(connection, config.listen.host, config.listen.port, tls)
    stack.callback(_aborted, connections)
    stack.callback(server.close)
    return Doors(url, sweep, connections, server, taken_over)


async def administered(stack: AsyncExitStack, config: Config, application: web.Application) -> str:
    """The admin port; its URL."""
    server = await _set_up(stack, web.AppRunner(application))
    connection = taking_over(server, config.limits.header_bytes)
    port, url = await _opened(connection, config.admin.host, config.admin.port, None)
    stack.callback(port.close)
    return url


def patience_of(config: Config) -> Patience:
    limits = config.timeouts
    return Patience(limits.client_head_s, limits.client_body_idle_s, limits.client_keep_s)


async def _set_up(stack: AsyncExitStack, runner: web.AppRunner) -> web.Server:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None  # noqa: S101 -- set up above
    return runner.server


async def _opened(
    connection: Callable[[], asyncio.Protocol], host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.Server, str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(connection, host, port, backlog=_BACKLOG, ssl=tls)
    host, port = server.sockets[0].getsockname()[:2]
    return server, f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def _aborted(connections: set[ClientConnection]) -> None:
    for connection in list(connections):
        connection.abort()
