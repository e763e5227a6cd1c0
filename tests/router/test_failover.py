"""The whole router over emulated replicas in processes of their own, which are killed, stopped, drained and restarted.

The one rule: nothing is timed but what the words promise ("within two seconds"); everything else is counted.
"""

import asyncio
import contextlib
import json
import re
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

from router.app import running
from router.config import load
from tests.fakes import IDLE, client_of, load_of, post, posted, until
from tests.processes import ROOT

BACK_S = 2.0
WORKERS = 12
JSON = b"Content-Type: application/json"


class Emulated:
    """One replica process on a port that stays the same when it is started again."""

    def __init__(self, name: str, *words: str) -> None:
        self.name = name
        self.words = words
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        words = ["replica", "--name", self.name, "--port", str(self.port), "--speed", "4", *self.words]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "router", *words, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            async for line in self.process.stderr:
                if found := re.search(rb"http://127\.0\.0\.1:(\d+)", line):
                    self.port = int(found[1])
                    break
        self.draining = asyncio.ensure_future(self.process.stderr.read())

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def killed(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self.draining

    async def stop(self) -> None:
        if self.process.returncode is None:
            await self.killed()


@asynccontextmanager
async def fleet(count: int, *words: str, **settings):
    """A router, and the processes behind it."""
    async with AsyncExitStack() as stack:
        replicas = [Emulated(f"r{number + 1}", *words) for number in range(count)]
        for replica in replicas:
            stack.push_async_callback(replica.stop)
        await asyncio.gather(*(replica.start() for replica in replicas))
        wanted = {
            "listen.port": 0,
            "admin.port": 0,
            "replicas": ",".join(replica.url for replica in replicas),
            "tokenizer.where": "text",
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        config, _ = load(flags={name: ("test", value) for name, value in wanted.items()})
        up = await stack.enter_async_context(running(config))
        await until(lambda: all(state.usable for state in up.watcher.states()), 30)
        yield up, replicas


class Traffic:
    """Clients that send one request after another; every other one streams."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ended = Counter()
        self.going = True

    @asynccontextmanager
    async def flowing(self):
        tasks = [asyncio.ensure_future(self._client(number)) for number in range(WORKERS)]
        try:
            yield self
        finally:
            self.going = False
            async with asyncio.timeout(30):
                await asyncio.gather(*tasks)

    async def more(self, count: int) -> None:
        """Return when so many more requests have been answered."""
        wanted = self.ended["done"] + count
        await until(lambda: self.ended["done"] >= wanted, 30)

    async def _client(self, number: int) -> None:
        turn = 0
        while self.going:
            turn += 1
            prompt = f"client {number} in its turn {turn} of many, " * 4
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 6, "stream": number % 2 == 1}
            self.ended[await self._one(json.dumps(body).encode(), streams=number % 2 == 1)] += 1

    async def _one(self, body: bytes, *, streams: bool) -> str:
        read = b""
        try:
            async with client_of(self.url) as client:
                await client.send(post(body, JSON))
                if not streams:
                    return "done" if (await client.reply()).status == 200 else "error"
                if b" 200 " not in await client.head():
                    return "error"
                while not read.endswith(b"0\r\n\r\n"):
                    line = await client.to(b"\r\n")
                    read += line
            return "done" if b"data: [DONE]" in read else "error"
        except (ConnectionError, asyncio.IncompleteReadError):
            return "broken stream" if b"data: " in read else "error"


def state(up, name: str = "r1"):
    return next(found for found in up.watcher.states() if found.name == name)


async def used_again(up, replica: Emulated) -> None:
    """The replica answers its health: within two seconds requests go there, and it is open."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                async with client_of(replica.url) as client:
                    await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                    if b" 200 " in await client.head():
                        break
    await until(lambda: state(up, replica.name).state == "open", BACK_S)


async def test_one_of_four_is_killed_under_load_and_started_again():
    async with fleet(4) as (up, replicas), Traffic(up.url).flowing() as traffic:
        await traffic.more(60)
        held = up.fleet.held_blocks("r1")
        assert held > 0
        await replicas[0].killed()
        await traffic.more(120)
        assert not state(up).usable
        await replicas[0].start()
        await used_again(up, replicas[0])
        assert state(up).restarts == 1
        await traffic.more(60)
        traffic.going = False
        assert traffic.ended["error"] == 0
        assert traffic.ended["broken stream"] <= WORKERS // 2
        await until(lambda: load_of(up) == IDLE, 30)
        assert "router_retries_denied_total 0.0" in up.metrics.exposition().decode()


async def test_one_of_four_is_stopped_under_load_and_goes_on():
    async with fleet(4) as (up, replicas), Traffic(up.url).flowing() as traffic:
        await traffic.more(60)
        replicas[0].signal(signal.SIGSTOP)
        await until(lambda: not state(up).usable, 10)
        await traffic.more(150)
        replicas[0].signal(signal.SIGCONT)
        await used_again(up, replicas[0])
        await traffic.more(30)
        traffic.going = False
        assert (traffic.ended["error"], traffic.ended["broken stream"]) == (0, 0)
        assert state(up).restarts == 0
        await until(lambda: load_of(up) == IDLE, 30)


async def test_one_of_two_drains_while_its_health_stays_good():
    async with fleet(2, "--shutdown-timeout", "20") as (up, replicas):
        long = json.dumps({"model": "tiny", "prompt": "a long answer", "max_tokens": 3000, "stream": True}).encode()
        async with client_of(up.url) as client:
            await client.send(post(long, JSON))
            await client.to(b"data: ")
            (busy,) = [replica for replica in replicas if up.fleet.load(replica.name)[0]]
            busy.signal(signal.SIGTERM)
            ids = json.dumps({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 1}).encode()
            for body in (ids, b'{"model":"tiny","prompt":"text","max_tokens":1}') * 10:
                reply = await posted(up.url, body, JSON)
                assert reply.status == 200
                assert reply.json["choices"][0]["finish_reason"] == "length"
            client.reset()
            await until(lambda: load_of(up) == IDLE)
