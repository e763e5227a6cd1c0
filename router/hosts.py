"""By what names the admin port may be called: a page elsewhere must not reach it through a name of its own.

A browser lets a page ask its own host whatever it likes, and whoever owns a domain can have its name point at this
port (DNS rebinding). The one rule: a request's Host is an address, a name without a dot, which nobody can register, or
a name that the operator gave. A request without one comes from no browser. Not here: who may change what
(`member_routes`).
"""

import re
import socket
from collections.abc import Collection
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.errors import NotAllowed
from router.side_connection import error_response

ANY = "*"

_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")
_PLAIN = re.compile(r"[a-z0-9_-]+")


def allowed(host: str, names: Collection[str]) -> bool:
    """Whether a Host header may be one of this port's; `names` are in lower case, `*.name` being all below a name."""
    if ANY in names or not host:
        return True
    found = _HOST.fullmatch(host.strip().lower())
    if found is None:
        return False
    name = found[1].removesuffix(".")
    if _PLAIN.fullmatch(name) or name in names or _address(name):
        return True
    parents = (f"*{name[at:]}" for at, letter in enumerate(name) if letter == ".")
    return name.endswith(".localhost") or any(parent in names for parent in parents)


def _address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def only_by(bound: str, names: Collection[str]) -> Middleware:
    """A middleware that answers 403 to other hosts than the `bound` one, this machine's own name, and `names`."""
    known = {name.lower() for name in (bound, socket.gethostname(), *names)}

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        if allowed(request.headers.get("Host", ""), known):
            return await handler(request)
        return error_response(
            NotAllowed("the admin port is not called by that name; use its address, or list it in admin.allowed_hosts")
        )

    return checked
