"""A soak: a router over four emulated replicas, mixed traffic, and something that breaks every few seconds.

    python -m tests.soak [SECONDS]

At the end nothing may be lost: every request that was sent is accounted for once, nothing is in flight, memory and open
files are where they were. The one rule: faults are drawn from a seed, so a run can be had again.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from tests.processes import ROOT, addresses, open_files, resident_bytes, served

REPLICAS = 4
CLIENTS = 24
PATIENCE_S = 30.0
_REST_S = 15.0
_CACHE_BYTES = 8 * 2**20  # of known text; full before memory is looked at first, or that would grow for an hour
_WORDS = ("river", "stone", "cloud", "paper", "green", "under", "quick", "seven", "light", "north")
_FAULTS = ("kill", "stop", "drain", "remove", "slow", "error", "cut", "hang")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Emulated:
    """One replica as a process that can be killed, stopped and started again on its port."""

    def __init__(self, name: str) -> None:
        self.name, self.port = name, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = ("replica", "--port", str(self.port), "--name", self.name, "--faults", "--speed", "20")
        command = [sys.executable, "-m", "router", *words]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)  # noqa: S603 -- our own program

    def signalled(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Tally:
    """What clients saw. Every request ends as exactly one of these."""

    sent: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)


class Soak:
    """One run."""

    def __init__(self, url: str, admin_url: str, replicas: list[Emulated], seed: int) -> None:
        self.url, self.admin_url, self.replicas = url, admin_url, replicas
        self.tally = Tally()
        self._seed = seed
        self._stopping = asyncio.Event()
        self._last: dict[int, str] = {}
        self.history: list[str] = []

    async def ran(self, seconds: float) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
            await self._usable(client)
            clients = [asyncio.create_task(self._client(client, number)) for number in range(CLIENTS)]
            breaking = asyncio.create_task(self._break(client))
            await asyncio.sleep(seconds)
            self._stopping.set()
            await breaking
            await asyncio.gather(*clients)
            await self._usable(client)

    async def _usable(self, client: aiohttp.ClientSession) -> None:
        """Return when all replicas are open."""
        async with asyncio.timeout(_REST_S * 2):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"{self.url}/health") as reply:
                        if (await reply.json())["replicas_open"] == REPLICAS:
                            return
                await asyncio.sleep(0.1)

    # -- clients ---------------------------------------------------------------------------------------------------

    async def _client(self, client: aiohttp.ClientSession, number: int) -> None:
        dice = random.Random(f"{self._seed}/{number}")
        history: list[dict[str, str]] = []
        while not self._stopping.is_set():
            self.tally.sent += 1
            leaving = dice.random() < 0.1
            kind = dice.choice(("chat", "chat", "stream", "stream", "completion", "long", "bad", "unknown"))
            self._last[number] = f"{kind} at {asyncio.get_running_loop().time():.1f}"
            asking = self._asked(client, dice, history, kind)
            task = asyncio.create_task(asking)
            if leaving:
                await asyncio.wait([task], timeout=dice.uniform(0.02, 0.3))
                task.cancel()
            try:
                end = await task
            except asyncio.CancelledError:
                end = "left"
            except TimeoutError:
                end = "lost"
                async with client.get(f"{self.admin_url}/metrics") as reply:
                    held = re.findall(r"^router_(?:in_flight|queue)\S* [1-9]\S*$", await reply.text(), re.MULTILINE)
                told = f"client {number} waited {PATIENCE_S:g} s in vain; {self._last[number]}"
                self.tally.troubles.append(f"{told}; still held: {held}")
            except aiohttp.ClientError:
                end = "failed"
            self.tally.ends[end] += 1
            await asyncio.sleep(dice.uniform(0, 0.05))

    async def _asked(
        self, client: aiohttp.ClientSession, dice: random.Random, history: list[dict[str, str]], kind: str
    ) -> str:
        text = " ".join(dice.choices(_WORDS, k=2000 if kind == "long" else 20))
        body: object = {"model": "tiny", "max_tokens": dice.randint(1, 60)}
        path = "/v1/chat/completions"
        if kind == "completion":
            path, body = "/v1/completions", {**body, "prompt": text}
        elif kind == "unknown":
            body = {"model": "nobody", "messages": [{"role": "user", "content": text}]}
        else:
            if len(history) > 12:
                history.clear()
            history.append({"role": "user", "content": text})
            body = {**body, "messages": list(history), "stream": kind in ("stream", "long")}
        data = b'{"model": "tiny", ' if kind == "bad" else json.dumps(body).encode()
        async with client.post(self.url + path, data=data, headers={"Content-Type": "application/json"}) as reply:
            answer = await reply.read()
        if reply.status == 200:
            whole = b"[DONE]" in answer if kind in ("stream", "long") else True
            return "done" if whole and b'"error"' not in answer else "failed"
        if reply.status in (400, 404) and kind in ("bad", "unknown"):
            return "refused"
        return "refused" if reply.status in (429, 503) else "failed"

    # -- faults ----------------------------------------------------------------------------------------------------

    async def _break(self, client: aiohttp.ClientSession) -> None:
        dice = random.Random(self._seed)
        while not self._stopping.is_set():
            replica, fault = dice.choice(self.replicas), dice.choice(_FAULTS)
            self.tally.faults[fault] += 1
            self.history.append(f"{asyncio.get_running_loop().time():.1f} {fault} {replica.name}")
            await self._broken(client, replica, fault, dice)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(dice.uniform(0.2, 1.5)):
                    await self._stopping.wait()

    async def _broken(self, client: aiohttp.ClientSession, one: Emulated, fault: str, dice: random.Random) -> None:
        lasts_s = dice.uniform(0.5, 2.0)
        if fault == "kill":
            one.end()
            await asyncio.sleep(lasts_s)
            one.start()
        elif fault == "stop":
            one.signalled(signal.SIGSTOP)
            await asyncio.sleep(lasts_s)
            one.signalled(signal.SIGCONT)
        elif fault in ("drain", "remove"):
            await self._told(client, {fault: one.name})
            await asyncio.sleep(lasts_s)
            await self._told(client, {"add": f"{one.name}={one.url}"})
        else:
            every = {"slow": 1, "error": 2, "cut": 3, "hang": 4}[fault]
            told = {"kind": fault, "every": every, "seconds": 0.5, "tokens": 3}
            with contextlib.suppress(aiohttp.ClientError):  # it may be starting still
                await (await client.post(f"{one.url}/faults", json=told)).read()
                await asyncio.sleep(lasts_s)
                await (await client.post(f"{one.url}/faults", json={"kind": "none"})).read()

    async def _told(self, client: aiohttp.ClientSession, change: object) -> None:
        async with client.post(f"{self.admin_url}/admin/replicas", json=change) as reply:
            if reply.status != 200:
                self.tally.troubles.append(f"{change} was answered {reply.status}: {await reply.text()}")

    # -- the end ---------------------------------------------------------------------------------------------------

    async def settled(self) -> str:
        """The metrics once nothing is in flight."""
        async with aiohttp.ClientSession() as client, asyncio.timeout(_REST_S * 2):
            while True:
                async with client.get(f"{self.admin_url}/metrics") as reply:
                    text = await reply.text()
                if set(values(text, "router_in_flight")) <= {0.0}:
                    return text
                await asyncio.sleep(0.1)

    def faults(self, metrics: str) -> list[str]:
        """What is wrong with the books."""
        tally = self.tally
        booked = sum(values(metrics, "router_requests_total"))
        found = list(tally.troubles)
        if sum(tally.ends.values()) != tally.sent:
            found.append(f"clients sent {tally.sent} and saw {dict(tally.ends)}")
        # A client may leave so early that the router never read its request.
        if not tally.sent - tally.ends["left"] <= booked <= tally.sent:
            found.append(f"clients sent {tally.sent}, {tally.ends['left']} of them left, and {booked} were booked")
        counters = ("router_in_flight", "router_pending_prefill_tokens")
        found += [f"{name} is {values(metrics, name)}" for name in counters if any(values(metrics, name))]
        if not tally.ends["done"] > tally.sent / 2:
            found.append(f"only {tally.ends['done']} of {tally.sent} were done")
        return found


def values(text: str, name: str) -> list[float]:
    """The samples of one metric."""
    return [float(found) for found in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)]


async def soaked(seconds: float, seed: int = 1) -> tuple[Soak, list[str]]:
    """A whole run: what happened, and what was wrong."""
    replicas = [Emulated(f"r{number + 1}") for number in range(REPLICAS)]
    listed = ",".join(f"{one.name}={one.url}" for one in replicas)
    limits = ("timeouts.first_byte_s=4", "timeouts.idle_s=4", "drain_s=5", "health.slow_start_s=1", "log.level=error")
    limits += (f"limits.prompt_cache_bytes={_CACHE_BYTES}",)
    words = [word for limit in (f"replicas={listed}", *limits) for word in ("--set", limit)]
    try:
        for one in replicas:
            one.start()
        with served(*words, "--set", "log.level=info") as process:
            url, admin_url, _ = await asyncio.to_thread(addresses, process)
            reading = asyncio.create_task(asyncio.to_thread(drained, process))
            soak = Soak(url, admin_url, replicas, seed)
            await soak.ran(seconds / 3)
            before_bytes, before_files = resident_bytes(process), open_files(process)
            soak._stopping.clear()
            await soak.ran(seconds * 2 / 3)
            found = soak.faults(await soak.settled())
            after_bytes, after_files = resident_bytes(process), open_files(process)
            if after_bytes > before_bytes * 1.2 + 16 * 2**20:
                found.append(f"memory grew from {before_bytes >> 20} to {after_bytes >> 20} MiB")
            if after_files > before_files + REPLICAS * CLIENTS + 32:  # idle connections to replicas are kept
                found.append(f"open files grew from {before_files} to {after_files}")
            process.kill()
            said = await reading
            errors = [number for number, line in enumerate(said) if " ERROR " in line]
            return soak, found + ["".join(said[number : number + 60]) for number in errors[:3]]
    finally:
        for one in replicas:
            one.end()


def drained(process: subprocess.Popen[str]) -> list[str]:
    """What the router said, so that its pipe never fills."""
    return list(process.stderr or ())


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    soak, found = asyncio.run(soaked(seconds))
    tally = soak.tally
    sys.stdout.write(f"{tally.sent} requests: {dict(tally.ends)}\nfaults: {dict(tally.faults)}\n")
    sys.stdout.writelines(f"WRONG: {line}\n" for line in found)
    if found:
        sys.stdout.write("".join(f"{line}\n" for line in soak.history))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
