"""Clients that leave, in every phase of a request: the replica learns of it, and nothing stays counted.

Real sockets; each phase is reached by something that can be seen, never by waiting. There is no phase of waiting
before a retry: another replica is asked at once.
"""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import (
    EVENT,
    IDLE,
    STREAM,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    posted,
    router_over,
    until,
)

LEFT_S = 2.0
PHASES = ("body", "tokenizing", "queued", "connecting", "waiting", "head", "stream", "retrying", "hung")
HOWS = ("close", "reset", "half-close")


def leave(client, how: str) -> None:
    if how == "half-close":
        client.writer.write_eof()
        return
    if how == "reset":
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.writer.transport.abort()


class Scene:
    """A router over two replicas; the first one answers as the phase of a request wants it."""

    def __init__(self, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack = stack
        self.patch = monkeypatch
        self.reached = 0
        self.left = 0

    async def opened(self) -> "Scene":
        self.a = await self.stack.enter_async_context(fake_replica(self.answer))
        self.b = await self.stack.enter_async_context(fake_replica(self.answer))
        self.up = await self.stack.enter_async_context(
            router_over(self.a, self.b, admission__max_in_flight=1000, health__passive=False)
        )
        return self

    async def answer(self, exchange) -> None:
        (phase,) = exchange.seen.values(b"x-phase")
        if phase == b"retrying" and not exchange.seen.values(b"x-request-id")[0].endswith(b"-retry-1"):
            await exchange.send(ok(b"{}", status=b"503 Busy"))
            return
        if phase in (b"head", b"stream"):
            await exchange.send(STREAM)
        if phase == b"stream":
            await exchange.send(EVENT * 3)
        if phase == b"ok":
            await exchange.send(ok())
            return
        self.reached += 1
        try:
            await exchange.left()
        finally:
            self.left += 1

    async def held(self, *_, **__):
        """Stands for a step of the router's own that takes for ever."""
        self.reached += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1

    async def one(self, phase: str, how: str) -> None:
        """Send a request, wait until it is in its phase, leave, and wait until that was noticed."""
        before = (self.reached, self.left)
        async with client_of(self.up.url) as client:
            request = post(b'{"model":"m","prompt":"hi"}', b"X-Phase: " + phase.encode(), b"X-Request-Id: i")
            with self.patch.context() as patch:
                if phase == "tokenizing":
                    patch.setattr("router.models.Served.read", self.held)
                elif phase == "connecting":
                    patch.setattr("router.http.upstream.Upstream._reusable", lambda _: None)
                    patch.setattr("router.http.upstream.Upstream._connected", self.held)
                elif phase == "queued":
                    patch.setattr("router.admission.Room.of", lambda *_: ())
                await client.send(request[:-5] if phase == "body" else request)
                await self.arrived(phase, before[0])
                leave(client, how)
                if phase in ("body", "queued"):
                    await until(lambda: self.counts() == (0, 0, 0), LEFT_S)
                else:
                    await until(lambda: self.left == before[1] + 1, LEFT_S)

    async def arrived(self, phase: str, before: int) -> None:
        if phase == "body":
            await until(lambda: any(getattr(one, "_body_bytes", 0) for one in self.up.doors._connections))
        elif phase == "queued":
            await until(lambda: self.counts()[0] == 1)
        else:
            await until(lambda: self.reached == before + 1)

    def counts(self) -> tuple[int, int, int]:
        admission = self.up.gateway._admission
        return admission.requests, admission.tokens, len(self.up.doors._connections)

    async def settled(self) -> None:
        """Nothing is counted anywhere, and the router serves."""
        await until(lambda: load_of(self.up) == IDLE, LEFT_S)
        await until(lambda: self.counts() == (0, 0, 0), LEFT_S)
        assert all(not way._busy for way in self.up.gateway._upstreams.values())
        assert [state.failures for state in self.up.watcher.states()] == [{}, {}]
        assert (await posted(self.up.url, b'{"model":"m","prompt":"hi"}', b"X-Phase: ok")).status == 200


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "hung"])
async def test_a_client_that_leaves_is_noticed_in_every_phase(phase, how, monkeypatch):
    async with AsyncExitStack() as stack:
        scene = await Scene(stack, monkeypatch).opened()
        await scene.one(phase, how)
        await scene.settled()


async def test_a_client_that_leaves_a_hung_replica_is_forgotten(monkeypatch):
    async with fake_replica() as hung, router_over(hung, health__interval_s=60) as up, client_of(up.url) as client:
        hung.stopped = asyncio.Event()
        await client.send(post())
        await until(lambda: hung.unanswered >= 1)
        leave(client, "reset")
        await until(lambda: load_of(up) == IDLE, LEFT_S)
        hung.stopped.set()


WALKS = st.lists(
    st.tuples(st.sampled_from([phase for phase in PHASES if phase != "hung"]), st.sampled_from(HOWS)), max_size=6
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(walk=WALKS)
def test_any_mix_of_clients_that_leave_returns_every_counter_to_zero(walk, monkeypatch):
    async def run() -> None:
        async with AsyncExitStack() as stack:
            scene = await Scene(stack, monkeypatch).opened()
            for phase, how in walk:
                await scene.one(phase, how)
            await scene.settled()

    asyncio.run(run())
