"""What relaying costs: CPU of the router per request and per streamed event, beside nginx or any other proxy.

    python bench/data_plane.py [--requests 40000] [--events 200] [--repeat 3] [--tokenizer FOLDER] [--json]
    python bench/data_plane.py --peer "smg=smg launch --port {port} --worker-urls {replicas}"

Replicas and clients are one process on one core, the proxy under test has the other; its CPU time is read from /proc,
so what else the machine does matters less. `tiny` is a short chat on 64 connections, `streams` 64 streams of events
10 ms apart. nginx takes part when it is installed. Compare within one run, by the median. Linux only.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import shlex
import shutil
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

CONNECTIONS = 64
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","root":"m","parent":null,"max_model_len":32768}]}'
ANSWER = (
    b'{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":'
    b'"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":25,"completion_tokens":1,"total_tokens":26}}'
)
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
GAP_S = 0.01
LONG_BYTES = 32 * 1024
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def answered(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Replica(asyncio.Protocol):
    """A replica that costs next to nothing: it looks for the end of a request and answers."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._data[:end].lower()
        start = head.find(b"content-length:")
        length = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        if len(self._data) < end + 4 + length:
            return
        body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
        if head.startswith(b"post") and b'"stream":true' in body:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            asyncio.get_running_loop().call_later(GAP_S, self._event, self._events)
        elif head.startswith(b"post"):
            self._transport.write(answered(ANSWER))
        elif b"/v1/models" in head:
            self._transport.write(answered(MODELS))
        else:
            self._transport.write(answered(b"", b"200 OK" if b"/health" in head else b"404 Not Found"))

    def _event(self, left: int) -> None:
        if self._transport.is_closing():
            return
        piece = EVENT if left else b"data: [DONE]\n\n"
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) + (b"" if left else b"0\r\n\r\n"))
        if left:
            asyncio.get_running_loop().call_later(GAP_S, self._event, left - 1)


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered, until the work is done."""

    def __init__(self, work: Iterator[bytes], done: asyncio.Event, open_clients: list["Client"]) -> None:
        self._work = work
        self._done = done
        self._open = open_clients
        self._streaming = False
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._open.append(self)
        self._ask()

    def _ask(self) -> None:
        request = next(self._work, None)
        if request is None:
            self._open.remove(self)
            self._transport.close()
            if not self._open:
                self._done.set()
            return
        self._streaming = b'"stream":true' in request
        self._data = b""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data = (self._data[-64:] if self._streaming else self._data) + data
        if self._data.endswith(b"0\r\n\r\n" if self._streaming else b"}}"):
            self._ask()


def requests(count: int, *, stream: bool) -> Iterator[bytes]:
    """Short chats, each with words of its own."""
    for number in range(count):
        body = json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": f"Hello {number * 7919 % 1000003}, how are you today?"}],
                "max_tokens": 16,
                **({"stream": True} if stream else {}),
            },
            separators=(",", ":"),
        ).encode()
        yield request(number, body)


def long_requests(count: int) -> Iterator[bytes]:
    """Chats of 32 KB in turn: 96 conversations under 16 system prompts, each with four different last turns."""
    dice = random.Random(7)
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 10))) for _ in range(4000)]
    words += ["na\u00efve", "\u65e5\u672c\u8a9e", '"quoted"', "line\nbreak"]

    def text(size: int) -> str:
        return " ".join(dice.choices(words, k=size // 7))

    systems = [text(LONG_BYTES // 4) for _ in range(16)]
    bodies = []
    for number in range(96):
        turns = [text(LONG_BYTES // 8) for _ in range(4)]
        head = [systems[number % 16], *turns]
        for _ in range(4):
            texts = [*head, text(LONG_BYTES // 16), text(3 * LONG_BYTES // 16)]
            roles = ("system", "user", "assistant", "user", "assistant", "assistant", "user")
            messages = [{"role": role, "content": content} for role, content in zip(roles, texts, strict=True)]
            given = {"model": "m", "messages": messages, "max_tokens": 64, "user": f"u{number}"}
            bodies.append(json.dumps(given, ensure_ascii=False).encode())
    dice.shuffle(bodies)
    for number, body in enumerate(itertools.islice(itertools.cycle(bodies), count)):
        yield request(number, body)


def request(number: int, body: bytes) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: fleet\r\nContent-Type: application/json\r\nAccept: */*\r\n"
        b"X-User-Id: u%d\r\nX-Session-Id: s%d\r\nContent-Length: %d\r\n\r\n" % (number % 1000, number % 1000, len(body))
    ) + body


def cpu_s(pid: int) -> float:
    """User and system time of a process and its children so far."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(stat.parent.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


NGINX = """worker_processes 1; daemon off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
upstream fleet {{ keepalive 256; {servers} }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://fleet; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_buffering off; proxy_request_buffering off; }} }} }}
"""


def commands(port: int, ports: list[int], folder: str, given: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """What is measured, by name."""
    replicas = ",".join(f"http://127.0.0.1:{replica}" for replica in ports)
    if shutil.which("nginx"):
        servers = " ".join(f"server 127.0.0.1:{replica};" for replica in ports)
        Path(folder, "nginx.conf").write_text(NGINX.format(folder=folder, servers=servers, port=port))
        yield "nginx", ["nginx", "-c", f"{folder}/nginx.conf", "-p", folder]
    serve = [sys.executable, "-m", "router", "serve", "--port", str(port), "--admin-port", "0", "--replicas", replicas]
    serve += ["--log-level", "error"]
    tokenizer = ["--tokenizer", given.tokenizer] if given.tokenizer else ["--set", "tokenizer.where=text"]
    yield "round-robin", [*serve, "--policy", "round-robin"]
    yield "prefix-aware", [*serve, *tokenizer]
    for peer in given.peer:
        name, _, command = peer.partition("=")
        yield name, shlex.split(command.format(port=port, replicas=replicas))


@contextmanager
def started(command: list[str], port: int) -> Iterator[int]:
    """The proxy on the second core, once it answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0) | {1})})
    try:
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended with {process.returncode} before it listened")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)


async def driven(port: int, count: int, *, stream: bool) -> None:
    work, done, clients = requests(count, stream=stream), asyncio.Event(), []
    loop = asyncio.get_running_loop()
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Client(work, done, clients), "127.0.0.1", port)
    await asyncio.wait_for(done.wait(), 600)


async def measured(given: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """CPU microseconds per request and per event, for each proxy, one value a repetition."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Replica(given.events), "127.0.0.1", 0) for _ in range(4)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    found: dict[str, dict[str, list[float]]] = {}
    for repetition in range(given.repeat):
        with tempfile.TemporaryDirectory() as folder:
            port = free_port()
            for name, command in commands(port, ports, folder, given):
                print(f"{repetition + 1}/{given.repeat} {name} …", file=sys.stderr)
                context = started(command, port)
                pid = await asyncio.to_thread(context.__enter__)
                try:
                    await asyncio.sleep(given.settle)
                    await driven(port, 2_000, stream=False)
                    told = found.setdefault(name, {"tiny": [], "streams": []})
                    before = cpu_s(pid)
                    await driven(port, given.requests, stream=False)
                    between = cpu_s(pid)
                    await driven(port, given.streams, stream=True)
                    told["tiny"].append(1e6 * (between - before) / given.requests)
                    told["streams"].append(1e6 * (cpu_s(pid) - between) / (given.streams * (given.events + 1)))
                finally:
                    await asyncio.to_thread(context.__exit__, None, None, None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--streams", type=int, default=192, help="streams in all, 64 at a time")
    parser.add_argument("--events", type=int, default=200, help="events of a stream")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--settle", type=float, default=2.0, help="seconds between a proxy's start and the first request"
    )
    parser.add_argument("--tokenizer", help="the model's, so that prefix-aware works on exact tokens")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND with {port} and {replicas}")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.sched_setaffinity(0, {0})
    found = uvloop.run(measured(given))
    medians = {name: {work: statistics.median(values) for work, values in rows.items()} for name, rows in found.items()}
    if given.json:
        print(json.dumps({"medians_us": medians, "runs_us": found}))
        return
    first = next(iter(medians.values()))
    table = Table("proxy", "µs / request", "ratio", "runs", "µs / event", "ratio", "runs")
    for name, rows in medians.items():
        cells = itertools.chain.from_iterable(
            (
                f"{rows[work]:.0f}",
                f"{rows[work] / first[work]:.2f}",
                " ".join(f"{value:.0f}" for value in found[name][work]),
            )
            for work in ("tiny", "streams")
        )
        table.add_row(name, *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
