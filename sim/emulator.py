"""A replica that looks like a vLLM server from outside: its routes, errors, streams and metrics, on an emulated engine.

The one rule: what a client or a router can observe of the prefix cache, the queue and the pace is the engine model's
doing; only the words are invented. A request that names its length gets exactly that many tokens, another a drawn
number; the same prompt gets the same answer. A client that goes away aborts its jobs.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from policies.blocks import Chain, packed
from sim.cost import Profile
from sim.emulator_about import adapter_path, add_about
from sim.emulator_answers import Vocabulary
from sim.emulator_dialects import dialect_of
from sim.emulator_events import KEPT_BATCHES, Published, Telling, Untold
from sim.emulator_json import answered, event
from sim.emulator_pages import Origin
from sim.emulator_pooling import add_pooling
from sim.emulator_refusals import answer_errors, engine_death, key_guard, missing
from sim.emulator_requests import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Ask,
    Limits,
    Tokenize,
    read_ask,
    read_body,
    read_model,
)
from sim.emulator_server import Work
from sim.emulator_tokens import add_tokens
from sim.emulator_wire import DONE, Choice, Dialect, Usage
from sim.errors import EngineDied
from sim.jobs import Job
from sim.live import LiveReplica, Reply, finished, more
from sim.replica import SimReplica

_KEEP_ALIVE_S = 5.0  # what uvicorn does
_BODY_BYTES = 64 * 2**20
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class _Part:
    """One choice of one prompt: its answer in ids, and how it ends."""

    ids: list[int]
    finish: str


class Emulator:
    """One running server. Make it with `start`."""

    def __init__(
        self,
        live: LiveReplica,
        telling: Telling,
        limits: Limits,
        vocabulary: Vocabulary,
        tokenize: Tokenize,
        detokenize: Callable[[list[int]], str],
        root: str,
        api_key: str = "",
    ) -> None:
        self.live = live
        self.telling = telling
        self.limits = limits
        self.started_unix_s = time.time()
        self.url = ""
        self.tokenize = tokenize
        self.detokenize = detokenize
        self.root = root
        self.stopped = 0
        self._vocabulary = vocabulary
        self._api_key = api_key
        self._runner: web.AppRunner | None = None
        self._asked = 0

    @property
    def engine(self) -> SimReplica:
        return self.live.engine

    async def listen(self, host: str, port: int) -> None:
        """Begin to serve; port 0 takes any free one."""
        self.live.start()
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_S,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
            self.telling.bind(self._runner.addresses[0][0])
        except OSError:
            await self.close()
            raise
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Cut what is in flight and free the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self.live.close()
        await self.telling.close()

    def _application(self) -> web.Application:
        guards = [key_guard(self._api_key)] if self._api_key else []
        app = web.Application(client_max_size=_BODY_BYTES, middlewares=[answer_errors, *guards])
        for route in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
            app.router.add_post(route, self._generate)
        add_pooling(app, self)
        add_tokens(app, self)
        add_about(app, self)
        return app

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = read_body(await http.read(), http.headers.get("Content-Type", ""))
        ask = read_ask(http.path, body, self.limits, self.tokenize)
        parts, works = self._planned(ask)
        dialect = dialect_of(ask, http.headers.get("X-Request-Id") or self._answer_name())
        with self.running(works) as replies:
            if ask.stream:
                return await self._streamed(http, ask, dialect, parts, replies)
            await finished(replies)
        self._count(parts)
        choices = [Choice(self._vocabulary.text(part.ids), part.ids, part.finish) for part in parts]
        return answered(dialect.whole(choices, self._usage(ask, parts, replies)))

    async def _streamed(
        self, http: web.Request, ask: Ask, dialect: Dialect, parts: Sequence[_Part], replies: Sequence[Reply]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(http)
        escaped = self._vocabulary.escaped
        sent = [0] * len(parts)
        left = sum(len(part.ids) for part in parts)
        out = [dialect.head()]  # goes out with the first token
        while left:
            try:
                await more(replies)
            except EngineDied:
                await response.write(event(engine_death().body) + DONE)
                break
            for choice, (part, reply) in enumerate(zip(parts, replies, strict=True)):
                for position in range(sent[choice], reply.made):
                    finish = part.finish if position + 1 == len(part.ids) else None
                    token = part.ids[position]
                    out.append(dialect.piece(choice, token, escaped[token], finish))
                left -= reply.made - sent[choice]
                sent[choice] = reply.made
            if not left:
                self._count(parts)
                out.append(dialect.tail(self._usage(ask, parts, replies)))
            await response.write(b"".join(out))
            out.clear()
        await response.write_eof()
        return response

    def _planned(self, ask: Ask) -> tuple[list[_Part], list[Work]]:
        origin = self._origin(ask)
        parts, works = [], []
        for prompt in ask.prompts:
            data = packed(prompt)
            room = self.limits.max_model_len - len(prompt)
            wanted = room if ask.ignore_eos else None
            if ask.max_tokens is not None:
                wanted = min(ask.max_tokens, room)
            for choice in range(ask.choices):
                ids = self._vocabulary.answer(data, choice, wanted)[:room]
                finish = "stop" if wanted is None and len(ids) < room else "length"
                parts.append(_Part(ids, finish))
                works.append(self.work(origin, prompt, ids, reads_cache=ask.reads_cache))
        return parts, works

    def _origin(self, ask: Ask) -> Origin:
        if not ask.adapter:
            return Origin(salt=ask.salt)
        number = self.limits.adapters.index(ask.adapter) + 1
        return Origin(ask.adapter, number, adapter_path(ask.adapter), ask.salt)

    def work(self, origin: Origin, prompt: Sequence[int], output: Sequence[int], *, reads_cache: bool = True) -> Work:
        """A job under an id of its own."""
        self._asked += 1
        root = Chain.root(self.limits.model, origin.adapter, origin.salt)
        block_tokens = self.engine.cache.block_tokens
        job = Job.of(str(self._asked), root, prompt, output, block_tokens, reads_cache=reads_cache)
        return Work(job, [*prompt, *output], origin)

    @contextmanager
    def running(self, works: Sequence[Work]) -> Iterator[list[Reply]]:
        """The engine has these as long as the caller waits for them."""
        replies = self.live.submit([work.job for work in works])
        for work in works:
            self.telling.opened(work.job.keys, work.tokens, work.origin)
        try:
            yield replies
        finally:
            self.live.abort(replies)
            for work in works:
                self.telling.closed(work.job.keys)

    def answer_id(self, kind: str) -> str:
        """An id for the answer to the request that was planned last."""
        return f"{kind}-{self._answer_name()}"

    def _answer_name(self) -> str:
        return hashlib.sha256(f"{self.engine.name} {self._asked}".encode()).hexdigest()[:16]

    def _count(self, parts: Sequence[_Part]) -> None:
        self.stopped += sum(part.finish == "stop" for part in parts)

    def _usage(self, ask: Ask, parts: Sequence[_Part], replies: Sequence[Reply]) -> Usage:
        firsts = replies[:: ask.choices]
        block_tokens = self.engine.cache.block_tokens
        cached = sum(reply.cached_tokens for reply in firsts)
        full = sum(len(prompt) // block_tokens * block_tokens for prompt in ask.prompts)
        return Usage(ask.prompt_tokens, cached, max(0, full - cached), sum(len(part.ids) for part in parts))

    async def read(self, http: web.Request, *needed: str) -> dict[str, Any]:
        """The body of a request for a model of ours."""
        body = read_body(await http.read(), http.headers.get("Content-Type", ""))
        for field in needed:
            if field not in body:
                raise missing(field, body)
        read_model(body, self.limits)
        return body


async def start(
    host: str,
    port: int,
    *,
    name: str,
    model: str,
    blocks: int,
    block_tokens: int,
    profile: Profile,
    speed: float,
    tokenize: Tokenize,
    detokenize: Callable[[list[int]], str],
    max_num_seqs: int = 256,
    max_batched_tokens: int = 8192,
    max_model_len: int = 32_768,
    root: str = "",
    adapters: Sequence[str] = (),
    vocabulary_tokens: int = 4096,
    vocabulary_size: int = 2**31,
    api_key: str = "",
    kv_events: int | None = None,
    kept_batches: int = KEPT_BATCHES,
) -> Emulator:
    """Start one emulated server.

    `vocabulary_tokens` is how many ids, from 0, the model may say; a prompt's ids are below `vocabulary_size`. With an
    `api_key` the paths below /v1 and /v2 want it as a bearer. `kv_events` is the port to publish the cache's events on,
    replayed from the next port; 0 takes any two, None publishes nothing.
    """
    engine = SimReplica(
        name,
        profile,
        blocks=blocks,
        block_tokens=block_tokens,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        record_events=kv_events is not None,
    )
    cache = engine.cache
    telling: Telling = Untold()
    if kv_events is not None:
        topic = f"kv@{name}"
        telling = Published(
            cache.drained_events, cache.block_tokens, topic=topic, port=kv_events, kept_batches=kept_batches
        )
    longest = min(max_model_len, cache.usable_blocks * block_tokens)
    emulator = Emulator(
        LiveReplica(engine, speed, telling.stepped),
        telling,
        Limits(model, tuple(adapters), longest, vocabulary_size),
        Vocabulary(detokenize, vocabulary_tokens),
        tokenize,
        detokenize,
        root or model,
        api_key,
    )
    await emulator.listen(host, port)
    return emulator
