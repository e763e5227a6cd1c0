"""What every client connection shares. Not here: the connection itself (`server`)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.http.messages import Call, Headers, Limits, Reply

if TYPE_CHECKING:
    from router.http.server import ClientConnection

Serve = Callable[[Call, Reply], Awaitable[None]]
Told = Callable[[Headers], Headers]


def untold(_: Headers) -> Headers:
    """A refusal says no more than its error."""
    return []


@dataclass(frozen=True, slots=True)
class Listener:
    """Who serves, what is allowed, who else is at the door."""

    serve: Serve
    limits: Limits
    otherwise: Callable[[], asyncio.Protocol]
    """Makes the Protocol that takes over connections whose request is not a POST."""
    connections: set["ClientConnection"]
    known: Callable[[Headers], None] = lambda _: None
    """Raises a `RequestError` for the head of a request whose sender may not come in."""
    told: Told = untold
    """What a refusal says beside its error to a request with these headers."""
