"""Which web pages may read the router's answers: the CORS protocol of the Fetch standard (§3.3), where configured.

A browser asks by an `OPTIONS` before it sends a page's POST with a key; the router answers that itself, for any path
and without a key, and every reply names who may read it. The one rule: only the router speaks then; what a replica says
of origins is dropped, for to a browser two answers are none. Not here: cookies, which no page may send along.
"""

from collections.abc import Iterable

from aiohttp import web

from router.errors import OriginNotAllowed
from router.http.listener import Serve
from router.http.messages import Call, Framing, Headers, Reply, Source
from router.side_connection import Handler, error_response

ANY = "*"

_PREFIX = b"access-control-"
_PREFLIGHT_S = 600  # how long a browser may remember an answer; browsers keep it for 5 s when not told


class Origins:
    """The origins that are allowed, and what replies say because of it."""

    __slots__ = ("_allowed", "_any")

    def __init__(self, allowed: Iterable[str]) -> None:
        """Origins as browsers write them, `https://chat.example.com`, or `*` for every one."""
        self._allowed = frozenset(allowed)
        self._any = ANY in self._allowed

    def __repr__(self) -> str:
        return f"<Origins {' '.join(sorted(self._allowed))}>"

    def allows(self, origin: str) -> bool:
        return self._any or origin in self._allowed

    def told(self, origin: str | None) -> Headers:
        """What a reply to a request of this origin says; None is a request of no page."""
        exposed = (b"Access-Control-Expose-Headers", b"*")  # Retry-After, X-Request-Id and whatever replicas add
        if self._any:
            return [(b"Access-Control-Allow-Origin", b"*"), exposed]
        varies = (b"Vary", b"Origin")  # a cache must not give one page another page's answer
        if origin is None or origin not in self._allowed:
            return [varies]
        return [(b"Access-Control-Allow-Origin", origin.encode("latin-1")), exposed, varies]

    def told_of(self, headers: Headers) -> Headers:
        """The same for a request that is refused while it is read; of its headers those that were."""
        origin = next((value for name, value in headers if name.lower() == b"origin"), None)
        return self.told(None if origin is None else origin.decode("latin-1"))

    def serving(self, serve: Serve) -> Serve:
        """`serve`, with every reply told who may read it."""

        async def told(call: Call, reply: Reply) -> None:
            await serve(call, _Told(reply, self.told(call.header(b"origin"))))

        return told

    def joined(self, application: web.Application) -> None:
        """The same for all that an application answers; it also answers the question before a request."""
        application.middlewares.append(self._preflight)
        application.on_response_prepare.append(self._prepared)

    @web.middleware
    async def _preflight(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _asks_first(request):
            return await handler(request)
        origin = request.headers["Origin"]
        if self.allows(origin):
            return web.Response(status=204)
        return error_response(OriginNotAllowed(f"the origin {origin[:100]!r} is not among cors.allow_origins"))

    async def _prepared(self, request: web.Request, response: web.StreamResponse) -> None:
        headers = response.headers
        for name in [name for name in headers if name.lower().startswith("access-control-")]:
            del headers[name]
        origin = request.headers.get("Origin")
        for key, value in self.told(origin):
            headers.add(key.decode(), value.decode("latin-1"))
        if _asks_first(request) and response.status == 204:
            headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, PUT, PATCH, DELETE"
            if wanted := request.headers.get("Access-Control-Request-Headers"):  # `*` would not cover Authorization
                headers["Access-Control-Allow-Headers"] = wanted
            headers["Access-Control-Max-Age"] = str(_PREFLIGHT_S)


def _asks_first(request: web.Request) -> bool:
    """Whether a browser asks if it may send another request."""
    headers = request.headers
    return request.method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


class _Told:
    """A reply whose head says who may read it; everything else is the reply's own."""

    __slots__ = ("_reply", "_told", "abort", "end", "flush", "framed", "write")

    def __init__(self, reply: Reply, told: Headers) -> None:
        self._reply = reply
        self._told = told
        self.framed = reply.framed
        self.write, self.flush, self.end, self.abort = reply.write, reply.flush, reply.end, reply.abort

    @property
    def source(self) -> Source | None:
        return self._reply.source

    @source.setter
    def source(self, source: Source | None) -> None:
        self._reply.source = source

    def verbatim(self) -> bool:
        return False

    def head(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> None:
        own = [field for field in headers if not field[0].lower().startswith(_PREFIX)]
        self._reply.head(status, reason, own + self._told, framing)
