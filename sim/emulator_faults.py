"""Faults on demand, for soak tests: a replica that hangs, is slow, answers errors or cuts its answers.

    POST /faults   {"kind": "hang" | "slow" | "error" | "cut" | "none", "every": 1, "seconds": 1, "status": 500,
                    "tokens": 1}
    GET  /faults   what was set, and how many requests it met

The one rule: faults meet only requests that generate, every `every`-th of them, and exist only on a server that was
started with them. `slow` waits before the engine sees the request, `cut` closes the connection after some tokens.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from aiohttp import web

from sim.emulator_json import answered
from sim.emulator_refusals import Refusal
from sim.emulator_requests import read_body

_KINDS = ("none", "hang", "slow", "error", "cut")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a request."""

    kind: str = "none"
    every: int = 1
    seconds: float = 1.0
    status: int = 500
    tokens: int = 1

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "Fault":
        fields = {field: type(value) for field, value in asdict(cls()).items()}
        for field, value in body.items():
            if field not in fields:
                raise Refusal(400, f"a fault has no {field[:40]!r}, only {', '.join(fields)}")
            if not isinstance(value, (int, float) if fields[field] is float else fields[field]):
                raise Refusal(400, f"{field} must be of type {fields[field].__name__}")
        fault = cls(**body)
        if fault.kind not in _KINDS:
            raise Refusal(400, f"kind must be one of {', '.join(_KINDS)}")
        if fault.every < 1 or fault.tokens < 0 or fault.seconds < 0 or not 400 <= fault.status < 600:
            raise Refusal(400, "every is 1 or more, tokens and seconds 0 or more, status between 400 and 599")
        return fault


class Faults:
    """The fault in force."""

    def __init__(self) -> None:
        self.fault = Fault()
        self.asked = 0
        self.met = 0

    def drawn(self) -> Fault:
        """What the next request meets."""
        self.asked += 1
        if self.fault.kind == "none" or self.asked % self.fault.every:
            return Fault()
        self.met += 1
        return self.fault

    def set(self, fault: Fault) -> None:
        self.fault = fault
        self.asked = self.met = 0


async def suffered(fault: Fault) -> int | None:
    """Go through the fault; the tokens after which the answer is to be cut, None when it is not."""
    if fault.kind == "hang":
        await asyncio.get_running_loop().create_future()
    if fault.kind == "slow":
        await asyncio.sleep(fault.seconds)
    if fault.kind == "error":
        raise Refusal(fault.status, "A simulated fault.", "InternalServerError")
    return fault.tokens if fault.kind == "cut" else None


class Faulty(Protocol):
    """What has faults."""

    faults: Faults


def add_faults(app: web.Application, server: Faulty) -> None:
    """Serve the route that switches them."""

    async def told(_http: web.Request) -> web.Response:
        return answered(asdict(server.faults.fault) | {"met": server.faults.met})

    async def switched(http: web.Request) -> web.Response:
        server.faults.set(Fault.read(read_body(await http.read(), http.headers.get("Content-Type", ""))))
        return await told(http)

    app.router.add_get("/faults", told)
    app.router.add_post("/faults", switched)
