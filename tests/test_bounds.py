"""What may grow with what clients send, and what may wait for it: whole routers, pushed."""

import asyncio
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from router.readers import TINY
from router.tokenizers import Tokenizer
from tests.fakes import IDLE, STREAM, chunk, client_of, fake_replica, load_of, ok, post, posted, router_over, until
from tests.processes import addresses, open_files, peak_bytes, resident_bytes, served, thread_count

LOCAL = {"tokenizer__where": "local", "tokenizer__path": str(TINY)}
LONG = b'{"model":"m","prompt":"' + b"lorem ipsum " * 90_000 + b'","max_tokens":1}'
"""A prompt of a megabyte."""
MIB = 2**20

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def posts(replica) -> list:
    return [seen for seen in replica.seen if seen.line.startswith(b"POST ")]


def own_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def got(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


async def asked(url: str, raw: bytes):
    async with client_of(url) as client:
        await client.send(raw)
        return await client.reply()


async def test_everybody_else_is_served_while_a_long_prompt_is_tokenized(monkeypatch) -> None:
    go, threads = threading.Event(), []
    encode = Tokenizer.encode_one

    def gated(self, text):
        if len(text) > MIB // 2:
            threads.append(threading.current_thread())
            go.wait(20)
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode_one", gated)

    async def answer(exchange) -> None:
        if b'"stream":true' not in exchange.seen.body:
            await exchange.send(ok())
            return
        await exchange.send(STREAM)
        for _ in range(20):
            await exchange.send(chunk(b"data: 1\n\n"))
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with fake_replica(answer) as replica, router_over(replica, **LOCAL) as up:
        try:
            long = asyncio.create_task(posted(up.url, LONG))
            await until(lambda: bool(threads))
            assert (await asked(up.url, got("/health"))).status == 200
            assert (await posted(up.url)).status == 200
            streams = [posted(up.url, b'{"model":"m","prompt":"hi","stream":true}') for _ in range(20)]
            assert all(reply.body.count(b"data: ") == 21 for reply in await asyncio.gather(*streams))
            assert not long.done()
            assert len(posts(replica)) == 21
        finally:
            go.set()
        assert (await long).status == 200
        assert posts(replica)[-1].body == LONG
        assert threading.main_thread() not in threads


async def test_no_turn_of_the_loop_takes_a_long_prompts_time(monkeypatch) -> None:
    """In processor seconds of the loop's own thread, against the same work done at once: no clock on the wall."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # all of it in the thread that is asked
    monkeypatch.setattr(Tokenizer, "_checked_fast", lambda *_: (None, "tokenizers"))
    longest_s = 0.0
    run = asyncio.Handle._run

    def measured(handle) -> None:
        nonlocal longest_s
        began_s = time.thread_time()
        run(handle)
        longest_s = max(longest_s, time.thread_time() - began_s)

    async with fake_replica() as replica, router_over(replica, **LOCAL) as up:
        reader = up.readers.of("m")
        began_s = time.thread_time()
        reader.tokenizer.encode([json.loads(LONG)["prompt"]])
        at_once_s = time.thread_time() - began_s
        gc.collect()
        monkeypatch.setattr(asyncio.Handle, "_run", measured)
        assert (await posted(up.url, LONG)).status == 200
        monkeypatch.undo()
    assert 0 < longest_s < at_once_s / 10, f"{longest_s:.4f} s of {at_once_s:.4f} s"


WORDS = ("--set", "tokenizer.where=text", "--policy", "user-hash")


@linux
@pytest.mark.timeout(60)
async def test_large_bodies_cost_a_bounded_multiple_of_themselves() -> None:
    """Eight at once, all of them read before any is answered."""
    body = b'{"model":"m","prompt":"' + b"x" * (20 * MIB) + b'","max_tokens":1}'
    all_here, arrived = asyncio.Event(), 0

    async def answer(exchange) -> None:
        nonlocal arrived
        exchange.seen.body = b""  # this process needs no copy
        arrived += 1
        if arrived == 8:
            all_here.set()
        await all_here.wait()
        await exchange.send(ok())

    async with fake_replica(answer) as replica:
        with served("--replicas", replica.url, *WORDS) as process:
            url, _, _ = await asyncio.to_thread(addresses, process)
            await posted(url, b"{")
            before = peak_bytes(process)
            replies = await asyncio.gather(*(posted(url, body) for _ in range(8)))
            assert {reply.status for reply in replies} == {200}
            assert peak_bytes(process) - before < 2.6 * 8 * len(body)  # 2.2 to 2.5 were seen


@linux
@pytest.mark.timeout(60)
@pytest.mark.parametrize("chunked", [False, True])
async def test_one_large_body_costs_little(chunked: bool) -> None:
    """An agent's prompt with an image of 4 MiB, read with a tokenizer."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4 * MIB}}
    content = [{"type": "text", "text": "describe"}, part]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 1}).encode()
    raw = post(body, path=b"/v1/chat/completions")
    if chunked:
        raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw += b"".join(chunk(body[start : start + 60_000]) for start in range(0, len(body), 60_000)) + chunk(b"")
    async with fake_replica() as replica:
        with served("--replicas", replica.url, "--tokenizer", str(TINY)) as process:
            url, _, _ = await asyncio.to_thread(addresses, process)
            assert (await posted(url)).status == 200
            before = peak_bytes(process)
            assert (await asked(url, raw)).status == 200
            assert peak_bytes(process) - before < 32 * MIB
        assert replica.seen[-1].body == body


async def series(admin: str) -> set[bytes]:
    """Every series of the router's own that it exposes."""
    lines = (await asked(admin, got("/metrics"))).body.splitlines()
    return {line.rpartition(b" ")[0] for line in lines if line.startswith(b"router_")}


async def many(url: str, numbers: range) -> set[int]:
    """One request for each number, with everything made up that a client can make up; the statuses."""
    statuses = set()

    async def some(part: range) -> None:
        async with client_of(url) as client:
            for number in part:
                model = "m" if number % 2 else f"model-{number}"
                made_up = {"model": model, "prompt": f"prompt {number} " * 20, "user": f"user-{number}", "n": 1}
                fields = (b"X-User-Id: u%d" % number, b"X-Session-Id: s%d" % number, b"Cookie: c%d=1" % number)
                path = b"/v1/completions?x=%d" % number if number % 4 < 2 else b"/v1/made-up-%d" % number
                await client.send(post(json.dumps(made_up).encode(), *fields, path=path))
                statuses.add((await client.reply()).status)

    await asyncio.gather(*(some(numbers[start::8]) for start in range(8)))
    return statuses


@linux
@pytest.mark.timeout(90)
async def test_what_clients_make_up_leaves_nothing_behind() -> None:
    """Models, users, sessions, paths, cookies: no label, no file and no cookie stays, and memory has a bound."""
    cookies = 0

    async def answer(exchange) -> None:
        nonlocal cookies
        cookies += 1
        path = exchange.seen.line.split(b" ")[1]
        await exchange.send(
            ok(b"{}", b"Content-Type: application/json", b"Set-Cookie: a%d=1; Path=%b" % (cookies, path))
        )

    async with fake_replica(answer) as one, fake_replica(answer) as two:
        with served("--replicas", f"{one.url},{two.url}", *WORDS) as process:
            url, admin, _ = await asyncio.to_thread(addresses, process)

            assert await many(url, range(400)) == {200, 404}
            names, files, memory = await series(admin), open_files(process), resident_bytes(process)
            assert await many(url, range(400, 2400)) == {200, 404}
            assert await series(admin) == names
            assert open_files(process) <= files + 2
            assert resident_bytes(process) - memory < 24 * MIB
    seen = [*posts(one), *posts(two)]
    sent = [field for one_seen in seen for field in one_seen.values(b"cookie")]
    assert len(sent) == len(set(sent)) == len(seen)  # the client's own, never a replica's


@linux
async def test_routers_that_end_leave_no_task_and_no_file() -> None:
    async def whole(times: int) -> tuple[int, int]:
        for _ in range(times):
            async with fake_replica() as replica, router_over(replica) as up:
                assert (await posted(up.url)).status == 200
                assert (await asked(up.url, got("/v1/models"))).status == 200
        await until(lambda: len(asyncio.all_tasks()) == 1)
        return len(asyncio.all_tasks()), own_files()

    first = await whole(2)
    assert await whole(15) == first


@linux
@pytest.mark.timeout(120)
async def test_replicas_that_come_and_go_leave_nothing_in_a_router_that_serves() -> None:
    """Five hundred times in a process of its own, with requests and probes in between: no file, thread or memory."""

    async def changed(admin: str, **change: object) -> None:
        raw = post(json.dumps(change).encode(), b"Content-Type: application/json", path=b"/admin/replicas")
        reply = await asked(admin, raw.replace(b"router.test", b"a"))
        assert reply.status == 200, reply.body

    async with fake_replica() as steady, fake_replica() as comes:
        with served("--replicas", steady.url, *WORDS, "--set", "drain_s=0") as process:
            url, admin, _ = await asyncio.to_thread(addresses, process)
            heard = asyncio.create_task(asyncio.to_thread(process.stderr.read))  # a full pipe would hold up its log

            async def times(count: int) -> None:
                for number in range(count):
                    await changed(admin, add={"name": "r2", "url": comes.url})
                    if number % 10 == 0:
                        assert (await posted(url)).status == 200
                    await changed(admin, remove="r2")

            await times(50)
            files, threads, memory = open_files(process), thread_count(process), resident_bytes(process)
            names = await series(admin)
            await times(500)
            await until(lambda: open_files(process) <= files + 2)
            # Nothing but asyncio's pool of threads for what would hold the loop may still grow, and that has an end.
            assert thread_count(process) <= threads + min(32, (os.cpu_count() or 1) + 4)
            assert resident_bytes(process) - memory < 16 * MIB
            assert await series(admin) == names
            assert (await posted(url)).status == 200
        await heard


async def test_replicas_that_come_and_go_leave_nothing() -> None:
    async with fake_replica() as steady, fake_replica() as other, router_over(steady) as up:
        tasks = len(asyncio.all_tasks())
        for number in range(500):
            up.fleet.joined(f"n{number}")
            up.watcher.watch(f"n{number}", other.url)
            await up.watcher.unwatch(f"n{number}")
            up.fleet.left(f"n{number}")
        assert set(up.fleet.replicas()) == {"r1"}
        assert [state.name for state in up.watcher.states()] == ["r1"]
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert (await posted(up.url)).status == 200
        assert load_of(up) == IDLE
