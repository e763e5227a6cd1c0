"""The router as a process that is told things by signals and files."""

import asyncio
import os
import signal
import sys

from router.serving import serve
from tests.fakes import STREAM, chunk, client_of, fake_replica, post, posted
from tests.processes import address, served


def test_the_loop_never_waits_long_for_another_thread(monkeypatch):
    async def lived(*_):
        return 7 if sys.getswitchinterval() <= 0.001 else 8

    monkeypatch.setattr("router.serving.lived", lived)
    before = sys.getswitchinterval()
    try:
        assert serve(None, None) == 7
    finally:
        sys.setswitchinterval(before)


def line_of(process, words: str) -> str:
    return next(line for line in process.stderr if words in line)


async def test_readiness_fails_first_and_requests_are_served_meanwhile():
    go = asyncio.Event()

    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.wait_for(go.wait(), 20)
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with fake_replica(answer) as replica:
        words = ("--set", f"replicas={replica.url}", "--set", "tokenizer.where=text", "--set", "unready_s=60")
        with served(*words) as process:
            url = await asyncio.to_thread(address, process)
            async with client_of(url) as probe, client_of(url) as client:
                ready = b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n"
                await probe.send(ready)
                assert (await probe.reply()).status == 200
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(line_of, process, "/health fails for 60 s")
                await probe.send(ready)
                answered = await probe.reply()
                assert (answered.status, answered.json["stopping"]) == (503, True)
                await client.send(post())
                assert b"200 OK" in await client.head()
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 20) == 0


async def test_a_reload_by_signal_and_by_file(tmp_path):
    file = tmp_path / "router.toml"

    def write(replica) -> None:
        file.write_text(f'replicas = ["{replica.url}"]\ntokenizer.where = "text"\n', "utf-8")

    async with fake_replica() as first, fake_replica() as second, fake_replica() as third:
        write(first)
        with served("--config", str(file)) as process:
            url = await asyncio.to_thread(address, process)
            assert (await posted(url)).status == 200
            for replica, hang_up in ((second, True), (third, False)):
                write(replica)
                if hang_up:
                    process.send_signal(signal.SIGHUP)
                else:
                    os.utime(file, ns=(file.stat().st_mtime_ns + 10**9,) * 2)
                await asyncio.to_thread(line_of, process, " is in: serves m")
                assert (await posted(url)).status == 200
                assert len(replica.seen) == 1
            file.write_text("replicas = [1", "utf-8")
            process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(line_of, process, "the one before stays in force")
            assert (await posted(url)).status == 200
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 20) == 0
