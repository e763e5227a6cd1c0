"""A router from its start to its end, as a process."""

import asyncio
import signal

import pytest

from tests.fakes import BODY, STREAM, chunk, client_of, fake_replica, post, posted, until
from tests.processes import address, served


@pytest.mark.parametrize("drain_s", [20, 0.2])
async def test_a_stream_outlives_the_signal_as_long_as_it_may(drain_s):
    go = asyncio.Event()

    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.wait_for(go.wait(), 20)
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with fake_replica(answer) as replica:
        with served(
            "--set", f"replicas={replica.url}", "--set", "tokenizer.where=text", "--set", f"drain_s={drain_s}"
        ) as process:
            url = await asyncio.to_thread(address, process)
            async with client_of(url) as client:
                await client.send(post())
                await client.head()
                process.send_signal(signal.SIGTERM)
                if drain_s < 1:
                    assert await asyncio.to_thread(process.wait, 20) == 0
                go.set()
                try:
                    rest = await client.rest()
                except ConnectionError:
                    rest = b""
                assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") is (drain_s > 1)
            assert await asyncio.to_thread(process.wait, 20) == 0


async def test_a_second_signal_ends_at_once():
    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await exchange.left()

    async with fake_replica(answer) as replica:
        with served(
            "--set", f"replicas={replica.url}", "--set", "tokenizer.where=text", "--set", "drain_s=60"
        ) as process:
            url = await asyncio.to_thread(address, process)
            async with client_of(url) as client:
                await client.send(post())
                await client.head()
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(lambda: next(line for line in process.stderr if "stopping" in line))
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 20) == 0
            await until(lambda: replica.left >= 1)


async def test_credentials_and_prompts_are_in_no_log():
    async def answer(exchange):
        exchange.cut()

    async with fake_replica(answer) as replica:
        words = ("--set", f"replicas={replica.url}", "--set", "tokenizer.where=text", "--set", "log.level=debug")
        with served(*words) as process:
            url = await asyncio.to_thread(address, process)
            await posted(url, BODY.replace(b"hi", b"private words"), b"Authorization: Bearer s3cret")
            await posted(url, b'{"private words', b"Authorization: Bearer s3cret")
            process.send_signal(signal.SIGTERM)
            log = await asyncio.to_thread(process.stderr.read)
            assert "private words" not in log
            assert "s3cret" not in log
            assert await asyncio.to_thread(process.wait, 20) == 0
