"""Clients that stop reading: what that costs the router's own process, and what it leaves behind."""

import asyncio
import socket
import sys
from contextlib import ExitStack

import pytest

from tests.fakes import STREAM, chunk, client_of, fake_replica, post, posted, until
from tests.processes import addresses, open_files, resident_bytes, served

MIB = 2**20
SMALL_BYTES = 8 * 1024
MOST_BYTES = 64 * 1024
WORDS = ("--set", "tokenizer.where=text", "--policy", "user-hash")
ASKED_BEFORE = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


async def stopped_reader(url: str, raw: bytes) -> socket.socket:
    """A client that has asked and never reads; its own socket holds next to nothing."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    await loop.sock_sendall(client, raw)
    return client


async def running(admin: str) -> float:
    """How many requests the router says it has."""
    async with client_of(admin) as client:
        await client.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        lines = (await client.reply()).body.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(b"router_in_flight{"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("before", "readers", "event_bytes"),
    [(b"", 500, 65_000), (b"", 200, 9_000), (ASKED_BEFORE, 200, 65_000), (ASKED_BEFORE, 200, 9_000)],
    ids=["data plane", "data plane, shorter events", "taken over", "taken over, shorter events"],
)
async def test_clients_that_stop_reading_cost_little(before, readers, event_bytes) -> None:
    """The replicas send as fast as they are let, and must wait. 31 to 34 KiB each were seen.

    And 43 to 56 on a connection that asked for something else before, of which aiohttp itself has 28.
    """
    piece = chunk(b"data: " + b"x" * event_bytes + b"\n\n")

    async def answer(exchange) -> None:
        await exchange.send(STREAM)
        while True:
            await exchange.send(piece)

    async with fake_replica(answer) as replica:
        with served("--replicas", replica.url, *WORDS) as process, ExitStack() as clients:
            url, admin, _ = await asyncio.to_thread(addresses, process)
            await posted(url, b"{")
            memory, files = resident_bytes(process), open_files(process)
            for _ in range(readers):
                clients.enter_context(await stopped_reader(url, before + post()))
            looks = [0]
            while len(replica.seen) < readers or looks[-3:] != [replica.sent_bytes] * 3:
                looks.append(replica.sent_bytes)
                assert resident_bytes(process) - memory < readers * MOST_BYTES
                await asyncio.sleep(0.5)  # the sign of back-pressure is that nothing moves for a while
            assert await running(admin) == readers
            clients.close()
            await until(lambda: open_files(process) <= files + 2, bound_s=20.0)
            assert await running(admin) == 0
