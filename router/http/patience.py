"""How long a client may take: over a head, between two pieces of a body, between two requests.

One timer looks at all connections now and then; reading and serving cost nothing for it. The one rule: a client moves
on or goes; while the router is at work on its request, it waits as long as it likes. Not here: bytes (`server`).
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

HEAD, BODY, KEPT = "head", "body", "kept"
"""Phases: in the head of a request, in its body, between two requests."""

Progress = tuple[str, int, int]
"""Phase, number of the request on its connection, bytes of its body."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds; None is no limit."""

    head_s: float | None = 30.0
    body_idle_s: float | None = 30.0
    keep_s: float | None = 3600.0

    def of(self, phase: str) -> float | None:
        return {HEAD: self.head_s, BODY: self.body_idle_s, KEPT: self.keep_s}[phase]


class Client(Protocol):
    """A connection that is looked at."""

    def progress(self) -> Progress | None:
        """How far the client is; None while the router is at work for it."""
        ...

    def given_up(self, phase: str, after_s: float) -> None:
        """It took too long: say so where that is possible, and close."""
        ...


class Sweep:
    """Looks at all clients, inside `async with`."""

    def __init__(self, patience: Patience, clients: Callable[[], Iterable[Client]]) -> None:
        self.patience = patience
        self._clients = clients
        self._seen: dict[Client, tuple[Progress, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Sweep {len(self._seen)} clients at rest>"

    async def __aenter__(self) -> "Sweep":
        self._ring()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def looked(self, now_s: float) -> None:
        """One look; who has not moved on since an earlier one for too long is given up."""
        seen: dict[Client, tuple[Progress, float]] = {}
        late: list[tuple[Client, str, float]] = []
        for client in self._clients():
            progress = client.progress()
            if progress is None:
                continue
            before = self._seen.get(client)
            since_s = before[1] if before is not None and before[0] == progress else now_s
            limit_s = self.patience.of(progress[0])
            if limit_s is not None and now_s - since_s >= limit_s:
                late.append((client, progress[0], limit_s))
            else:
                seen[client] = progress, since_s
        self._seen = seen
        for client, phase, limit_s in late:
            client.given_up(phase, limit_s)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        self.looked(loop.time())
        limits = [limit for phase in (HEAD, BODY, KEPT) if (limit := self.patience.of(phase)) is not None]
        self._timer = loop.call_later(min([5.0, *(limit / 4 for limit in limits)]), self._ring)
