"""Input that means harm, sent to the router as a process: it is refused or bounded, and holds up nobody."""

import asyncio
import json
import re
from contextlib import asynccontextmanager, suppress

import pytest

from tests.fakes import BOUND_S, client_of, fake_replica, ok, post, posted, said, until
from tests.processes import addresses, open_files, peak_bytes, resident_bytes, served

MIB = 1024 * 1024
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
GOOD = b'{"model":"m","prompt":"still here","max_tokens":1}'


async def scraped(admin_url: str) -> str:
    async with client_of(admin_url) as client:
        await client.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return (await client.rest()).decode()


async def busy_stalls(admin_url: str) -> float:
    [count] = re.findall(r'^router_loop_stalls_total\{kind="busy"\} (\S+)', await scraped(admin_url), re.MULTILINE)
    return float(count)


class Target:
    """A router process, its replica, and what it has stalled before the attack."""

    def __init__(self, process, replica, url: str, admin_url: str, stalls: float) -> None:
        self.process, self.replica, self.url, self.admin_url, self.stalls = process, replica, url, admin_url, stalls

    async def unharmed(self, by: str = "") -> None:
        """It serves as before, nothing is left in flight, and its loop was held by nothing of what came."""
        assert (await posted(self.url, GOOD)).body == b'{"ok":true}', by
        told = await scraped(self.admin_url)
        assert set(re.findall(r"^router_in_flight\{[^}]*\} (\S+)", told, re.MULTILINE)) == {"0.0"}, by
        assert await busy_stalls(self.admin_url) == self.stalls, by


@asynccontextmanager
async def attacked():
    """A router process and its replica."""
    words = ("--tokenizer", "router/data/tiny", "--set", "timeouts.client_head_s=2", "--set", "drain_s=0")
    async with fake_replica() as replica:
        with served("--set", f"replicas={replica.url}", *words) as process:
            url, admin_url, _ = await asyncio.to_thread(addresses, process)
            assert (await posted(url, GOOD)).status == 200
            yield Target(process, replica, url, admin_url, await busy_stalls(admin_url))


def chat(content: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()


BODIES = {
    "1 MB of one character": (chat("a" * MIB), 200),
    "1 MB of one multi-byte character": (chat("語" * (MIB // 3)), 200),
    "1 MB of spaces": (chat(" " * MIB), 200),
    "1 MB of line ends": (chat("\n" * MIB), 200),
    "1 MB of emoji that join": (chat("👩\u200d" * (MIB // 7)), 200),
    "a prompt of 5 MB": (chat("The quick brown fox. " * 250_000), 200),
    "special tokens in a text": (chat("<|im_start|>" * 50_000), 200),
    "lists in lists": (b"[" * 100_000, 400),
    "lists in lists, closed": (b'{"model":"m","prompt":' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400),
    "tables in tables": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
    "a number without an end": (b'{"model":"m","n":' + b"9" * MIB + b"}", {200, 400}),
    "half a character": (b'{"model":"m","prompt":"\xe8"}', {200, 400}),
    "half a surrogate": (b'{"model":"m","prompt":"\\ud83d"}', {200, 400}),
    "ten thousand messages": (
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}] * 10_000}).encode(),
        200,
    ),
    "ids that are none": (b'{"model":"m","prompt":[-1,99999999999999999999,1.5]}', {200, 400}),
}


async def test_a_body_is_passed_on_or_refused_and_holds_up_nobody():
    async with attacked() as target:
        for name, (body, expected) in BODIES.items():
            path = b"/v1/chat/completions" if b'"messages"' in body[:40] else b"/v1/completions"
            reply = await posted(target.url, body, path=path)
            assert reply.status in (expected if isinstance(expected, set) else {expected}), name
            if reply.status == 400:
                assert reply.error["type"] == "invalid_request_error", name
            else:
                assert target.replica.seen[-1].body == body, name
            await target.unharmed(name)


HEADS = {
    "64 KiB in one header": (HEAD + b"X: " + b"a" * 70_000, 431),
    "64 KiB of small headers": (HEAD + b"X: y\r\n" * 12_000, 431),
    "a target of 70 KB": (b"POST /" + b"a" * 70_000, 431),
    "a method of 70 KB": (b"P" * 70_000, 400),
    "no HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00" + bytes(range(256)) * 4 + b"\r\n\r\n", 400),
    "CONNECT": (b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n", {400, 404, 501}),
    "a NUL in a header": (HEAD + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}", 400),
    "a line end in a header": (HEAD + b"X: a\rY: b\r\nContent-Length: 2\r\n\r\n{}", 400),
    "HTTP/2 without being asked": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
}


async def test_a_head_is_refused_and_reaches_no_replica():
    async with attacked() as target:
        for name, (raw, expected) in HEADS.items():
            before = len(target.replica.seen)
            async with client_of(target.url) as client:
                await client.send(raw)
                reply = await client.reply()
                assert reply.status in (expected if isinstance(expected, set) else {expected}), name
            assert len(target.replica.seen) == before, name
            await target.unharmed(name)


NOT_SERVED = (
    b"/v1/../sleep",
    b"/v1/%2e%2e/sleep",
    b"/v1/./../../sleep",
    b"/v1/.",
    b"//sleep",
    b"/%73leep",
    b"/%2fsleep",
    b"/sleep/",
    b"/sleep?level=1",
    b"http://a/sleep",
    b"http://a//sleep",
    b"/v1/completions/../../metrics",
    b"/v1/completions%2f..%2f..%2fsleep",
)


async def test_no_way_of_writing_a_path_reaches_what_is_not_served():
    async with attacked() as target:
        del target.replica.seen[:]
        for method in (b"POST", b"GET"):
            for path in NOT_SERVED:
                async with client_of(target.url) as client:
                    await client.send(post(GOOD, path=path).replace(b"POST", method, 1))
                    assert (await client.reply()).status in (400, 404), path
            assert target.replica.seen == []
            async with client_of(target.url) as client:
                whole = b"http://evil.test/v1/completions?a=b"
                await client.send(post(GOOD, path=whole).replace(b"POST", method, 1))
                assert (await client.reply()).status == 200
            assert target.replica.seen.pop().line.split(b" ")[1] == b"/v1/completions?a=b"
        await target.unharmed()


async def test_a_body_without_an_end_is_bounded():
    async def poured(client) -> None:
        async with asyncio.timeout(4 * BOUND_S):
            while True:
                await client.send(b"100000\r\n" + b"x" * MIB + b"\r\n")

    async with attacked() as target:
        before = resident_bytes(target.process)
        async with client_of(target.url) as client:
            await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            with pytest.raises(ConnectionError):
                await poured(client)
        assert peak_bytes(target.process) - before < 3 * 64 * MIB
        await target.unharmed()


async def test_connections_that_never_say_anything_are_closed_and_leave_no_files():
    async with attacked() as target:
        before = open_files(target.process)
        host, port = target.url.removeprefix("http://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(300)]
        for _, writer in silent:
            writer.write(b"P")
        assert (await posted(target.url, GOOD)).status == 200
        async with asyncio.timeout(4 * BOUND_S):
            for reader, writer in silent:
                assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
                writer.close()
        await until(lambda: open_files(target.process) <= before + 8)
        await target.unharmed()


async def test_a_replica_that_means_harm_harms_only_its_own_reply():
    async with attacked() as target:
        for raw in (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000,
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"\x00" * 1000,
        ):
            target.replica.answer = said(raw)
            async with client_of(target.url) as client:
                await client.send(post(GOOD))
                with suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):  # when some of it had passed
                    assert (await client.reply()).status in (502, 503)
            target.replica.answer = said(ok())
        await target.unharmed()
