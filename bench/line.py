"""The router's own work for one request, without a kernel: from a client's bytes to the bytes of its reply.

    python bench/line.py [--tokenizer FOLDER] [--policy NAME] [--requests 200] [--rounds 30] [--long] [--profile]

The whole live line runs (llhttp on both sides, tokens, policy, accounts); only the sockets are pretended, and replicas
answer at once. The fastest round is the one nobody else disturbed, so this can be compared on a machine that is busy.
"""

import argparse
import asyncio
import cProfile
import itertools
import pstats
import statistics
import time
from collections.abc import Iterator
from typing import Any

import uvloop
from data_plane import ANSWER, Replica, answered, long_requests, requests

from router.app import Running, running
from router.config import Config
from router.http.connection import ReplicaConnection
from router.http.listener import Listener
from router.http.messages import Limits
from router.http.server import ClientConnection

_CLIENTS = 16
_ANSWERED = answered(ANSWER)


class Pretended:
    """A transport without a socket: what is written to it goes to `told`."""

    def __init__(self, told: Any) -> None:
        self.write = told

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def nothing(self, **_: object) -> None:
        """What is asked of it besides has no effect."""

    pause_reading = resume_reading = close = abort = set_write_buffer_limits = nothing


def connected(up: Running) -> list[ClientConnection]:
    """Clients of the running router, and a connection to every replica for each."""
    loop = asyncio.get_running_loop()
    for upstream in up.gateway._upstreams.values():
        for _ in range(_CLIENTS):
            replica = ReplicaConnection(upstream)

            def told(_: bytes, replica: ReplicaConnection = replica) -> None:
                loop.call_soon(replica.data_received, _ANSWERED)

            replica.connection_made(Pretended(told))  # type: ignore[arg-type]  # as much of one as is used
            upstream.kept(replica)
    listener = Listener(up.gateway.serve, Limits(), asyncio.Protocol, set(), up.gateway.tenants.known)
    return [ClientConnection(listener) for _ in range(_CLIENTS)]


async def asked(clients: list[ClientConnection], work: Iterator[bytes], count: int) -> float:
    """CPU seconds a request."""
    these = list(itertools.islice(work, count))
    left = count
    done = asyncio.Event()

    def told(_: bytes) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    for client in clients:
        client.connection_made(Pretended(told))  # type: ignore[arg-type]  # as much of one as is used
    began_s = time.process_time()
    for client, request in zip(itertools.cycle(clients), these, strict=False):
        if client.busy:
            while client.busy:  # noqa: ASYNC110 -- it is the loop's turns that are measured
                await asyncio.sleep(0)
        client.data_received(request)
    await done.wait()
    return (time.process_time() - began_s) / count


async def measured(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Replica(0), "127.0.0.1", 0) for _ in range(4)]
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    config = Config.model_validate(
        {
            "replicas": [{"name": f"r{place}", "url": url} for place, url in enumerate(urls)],
            "listen": {"port": 0},
            "admin": {"port": 0},
            "policy": {"name": options.policy},
            "tokenizer": {"path": options.tokenizer},
        }
    )
    async with running(config) as up:
        clients = connected(up)
        work = long_requests(10**9) if options.long else requests(10**9, stream=False)
        await asked(clients, work, 2000)
        if options.profile:
            profile = cProfile.Profile()
            profile.enable()
            await asked(clients, work, 5000)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(60)
            return
        found = [await asked(clients, work, options.requests) * 1e6 for _ in range(options.rounds)]
        print(
            f"{options.policy}: {min(found):.1f} us a request in the fastest round,"
            f" {statistics.median(found):.1f} in the median one"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", help="a model folder, for policies that look at prefixes")
    parser.add_argument("--policy", default="prefix-aware")
    parser.add_argument("--requests", type=int, default=200, help="in a round")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--long", action="store_true", help="chats of 32 KB with a history instead of tiny ones")
    parser.add_argument("--profile", action="store_true")
    uvloop.run(measured(parser.parse_args()))
