"""A client connection served by aiohttp: every request on it that is not a POST on the data plane, and the admin port.

The one rule: what could not be read is repeated neither to the client nor in the log. Not here: what is served (`web`).
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import LineTooLong

from router.errors import BadRequest, ClientTooSlow, HeadTooLarge, NotImplementedHere, RequestError
from router.http.heads import checked_host
from router.http.patience import BODY, HEAD, Progress

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SideConnection(web.RequestHandler):
    """aiohttp's connection, which by itself tells client and log the bytes it could not read: a credential, maybe."""

    __slots__ = ("_asked", "_heard", "_serving")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._asked = 0
        self._heard = False
        self._serving: web.Request | None = None
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        super().data_received(data)

    def progress(self) -> Progress | None:
        """How far the client is; between two requests aiohttp itself looks at the time."""
        if self._serving is None:
            return (HEAD, self._asked, 0) if self._heard else None
        content = self._serving.content
        return None if content.is_eof() else (BODY, self._asked, content.total_bytes)

    def given_up(self, phase: str, after_s: float) -> None:
        if self.transport is not None:
            if self._serving is None:  # nothing of a reply can be under way
                error = ClientTooSlow.over(phase, after_s)
                head = b"HTTP/1.1 %d %b\r\n" % (error.status, error.reason.encode())
                fields = b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                self.transport.write(head + fields % len(error.body) + error.body)
            self.force_close()

    def begun(self, request: web.Request) -> None:
        """A request's head is whole."""
        self._serving, self._heard = request, False
        self._asked += 1

    def ended(self) -> None:
        self._serving = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 -- holds the bytes
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionResetError):
            raise exc  # the client left while its reply began; aiohttp ends the connection quietly
        if status >= 500:
            self.log_exception("a request failed by a fault of the router", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the reply has begun, so no error can be told")
        if status >= 500:
            error = RequestError("the router failed to serve this request; its log says why")
        elif isinstance(exc, LineTooLong):
            error = HeadTooLarge("a line of the request's head exceeds limits.header_bytes")
        else:
            error = BadRequest("the request is not valid HTTP")
        response = error_response(error)
        response.force_close()
        return response


@web.middleware
async def followed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets the connection know when it serves."""
    connection = request.protocol
    assert isinstance(connection, SideConnection)  # noqa: S101 -- `taking_over` makes no others
    connection.begun(request)
    try:
        wrong = _wrong(request)
        if wrong is None:
            return await handler(request)
        response = error_response(wrong)
        response.force_close()
        return response
    finally:
        connection.ended()


def _wrong(request: web.Request) -> RequestError | None:
    """What is wrong with a request that aiohttp lets pass: what follows it on its connection is not to be read."""
    if request.method == "CONNECT":
        return NotImplementedHere("CONNECT is not accepted: this is no forward proxy")
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 and (hosts or request.version >= HttpVersion11):  # RFC 9112 §3.2
        return BadRequest(f"the request has {len(hosts)} Host headers; send exactly one")
    try:
        checked_host("".join(hosts).encode("utf-8", "surrogateescape"))
    except BadRequest as error:
        return error
    return None


def taking_over(server: web.Server, header_bytes: int) -> Callable[[], SideConnection]:
    """Makes the connections of `server`, from their first byte or from bytes that were read elsewhere."""
    loop = asyncio.get_running_loop()

    def connection() -> SideConnection:
        return SideConnection(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None is how it is turned off
            auto_decompress=False,
            max_line_size=header_bytes,
            max_field_size=header_bytes,
        )

    return connection


def error_response(error: RequestError) -> web.Response:
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return web.Response(body=error.body, status=error.status, headers=headers)
