"""A replica that looks like a vLLM server from outside: its routes, errors, streams and metrics, on an emulated engine.

The one rule: what a client or a router can observe of the prefix cache, the queue and the pace is the engine model's
doing; only the words are invented. A request that names its length gets exactly that many tokens, another a drawn
number; the same prompt gets the same answer. A client that goes away aborts its jobs.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from policies.blocks import Chain, packed
from sim.cost import Profile
from sim.emulator_answers import Vocabulary
from sim.emulator_dialects import dialect_of
from sim.emulator_metrics import exposition
from sim.emulator_pooling import add_pooling
from sim.emulator_refusals import Refusal, answer_errors, invalid
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
    tokenized,
)
from sim.emulator_wire import Choice, Dialect, Usage
from sim.live import LiveReplica, Reply, finished
from sim.replica import Job, SimReplica

_VERSION = "0.32.0"
_KEEP_ALIVE_S = 5.0  # what uvicorn does
_BODY_BYTES = 64 * 2**20
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class _Part:
    """One choice of one prompt: its answer in ids, and how it ends."""

    prompt: int
    ids: list[int]
    finish: str


class Emulator:
    """One running server. Make it with `start`."""

    def __init__(
        self,
        live: LiveReplica,
        limits: Limits,
        vocabulary: Vocabulary,
        tokenize: Tokenize,
        detokenize: Callable[[list[int]], str],
        root: str,
    ) -> None:
        self.live = live
        self.limits = limits
        self.started_unix_s = time.time()
        self.url = ""
        self.tokenize = tokenize
        self._vocabulary = vocabulary
        self._detokenize = detokenize
        self._root = root
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

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_BYTES, middlewares=[answer_errors])
        for route in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
            app.router.add_post(route, self._generate)
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_post("/tokenize", self._tokenize_text)
        app.router.add_post("/detokenize", self._detokenize_ids)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/load", self._load)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", _empty)
        app.router.add_route("GET", "/ping", _empty)
        app.router.add_post("/ping", _empty)
        add_pooling(app, self)
        return app

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = read_body(await http.read(), http.headers.get("Content-Type", ""))
        ask = read_ask(http.path, body, self.limits, self.tokenize)
        parts, jobs = self._planned(ask)
        dialect = dialect_of(ask, http.headers.get("X-Request-Id") or self._answer_name())
        replies = self.live.submit(jobs)
        try:
            if ask.stream:
                return await self._streamed(http, ask, dialect, parts, replies)
            await finished(replies)
        finally:
            self.live.abort(replies)
        choices = [Choice(self._vocabulary.text(part.ids), part.finish) for part in parts]
        return web.json_response(dialect.whole(choices, self._usage(ask, parts, replies)))

    async def _streamed(
        self, http: web.Request, ask: Ask, dialect: Dialect, parts: Sequence[_Part], replies: Sequence[Reply]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(http)
        bell, escaped = replies[0].bell, self._vocabulary.escaped
        sent = [0] * len(parts)
        left = sum(len(part.ids) for part in parts)
        out = [dialect.head()]  # goes out with the first token
        while left:
            await bell.wait()
            bell.clear()
            for choice, (part, reply) in enumerate(zip(parts, replies, strict=True)):
                for position in range(sent[choice], reply.made):
                    finish = part.finish if position + 1 == len(part.ids) else None
                    out.append(dialect.piece(choice, escaped[part.ids[position]], finish))
                left -= reply.made - sent[choice]
                sent[choice] = reply.made
            if not left:
                out.append(dialect.tail(self._usage(ask, parts, replies)))
            await response.write(b"".join(out))
            out.clear()
        await response.write_eof()
        return response

    def _planned(self, ask: Ask) -> tuple[list[_Part], list[Job]]:
        root = Chain.root(self.limits.model, ask.adapter, ask.salt)
        parts, jobs = [], []
        for number, prompt in enumerate(ask.prompts):
            data = packed(prompt)
            room = self.limits.max_model_len - len(prompt)
            for choice in range(ask.choices):
                wanted = None if ask.max_tokens is None else min(ask.max_tokens, room)
                ids = self._vocabulary.answer(data, choice, wanted)[:room]
                finish = "stop" if wanted is None and len(ids) < room else "length"
                parts.append(_Part(number, ids, finish))
                jobs.append(self.job(root, prompt, ids, reads_cache=ask.reads_cache))
        return parts, jobs

    def job(self, root: Chain, prompt: Sequence[int], output: Sequence[int], *, reads_cache: bool = True) -> Job:
        """A job under an id of its own."""
        self._asked += 1
        block_tokens = self.engine.cache.block_tokens
        return Job.of(str(self._asked), root, prompt, output, block_tokens, reads_cache=reads_cache)

    def _answer_name(self) -> str:
        return hashlib.sha256(f"{self.engine.name} {self._asked}".encode()).hexdigest()[:16]

    def _usage(self, ask: Ask, parts: Sequence[_Part], replies: Sequence[Reply]) -> Usage:
        firsts = replies[:: ask.choices]
        block_tokens = self.engine.cache.block_tokens
        cached = sum(reply.cached_tokens for reply in firsts)
        full = sum(len(prompt) // block_tokens * block_tokens for prompt in ask.prompts)
        return Usage(sum(map(len, ask.prompts)), cached, max(0, full - cached), sum(len(part.ids) for part in parts))

    async def _count_tokens(self, http: web.Request) -> web.Response:
        body = await self.read(http, "messages")
        count = len(tokenized(MESSAGES, body, self.tokenize))
        return web.json_response({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def _tokenize_text(self, http: web.Request) -> web.Response:
        body = await self.read(http)
        if "messages" not in body and "prompt" not in body:
            raise invalid("missing", "body.prompt", "Field required")
        ids = tokenized(CHAT if "messages" in body else COMPLETIONS, body, self.tokenize)
        strings = [self._detokenize([token]) for token in ids] if body.get("return_token_strs") else None
        answer = {"count": len(ids), "max_model_len": self.limits.max_model_len, "tokens": ids, "token_strs": strings}
        return web.json_response(answer)

    async def _detokenize_ids(self, http: web.Request) -> web.Response:
        body = await self.read(http, "tokens")
        try:
            return web.json_response({"prompt": self._detokenize(body["tokens"])})
        except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
            raise Refusal(400, f"The tokens cannot be detokenized: {type(error).__name__}") from error

    async def read(self, http: web.Request, *needed: str) -> dict[str, Any]:
        """The body of a request for a model of ours."""
        body = read_body(await http.read(), http.headers.get("Content-Type", ""))
        for field in needed:
            if field not in body:
                raise invalid("missing", f"body.{field}", "Field required")
        read_model(body, self.limits)
        return body

    async def _models(self, http: web.Request) -> web.Response:  # noqa: ARG002
        base = self._card(self.limits.model, self._root, None) | {"max_model_len": self.limits.max_model_len}
        adapters = [self._card(name, f"/adapters/{name}", self.limits.model) for name in self.limits.adapters]
        return web.json_response({"object": "list", "data": [base, *adapters]})

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        created = int(self.started_unix_s)
        return {"id": name, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent}

    async def _metrics(self, http: web.Request) -> web.Response:  # noqa: ARG002
        text = exposition(self.engine, self.limits.model, self.started_unix_s)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _load(self, http: web.Request) -> web.Response:  # noqa: ARG002
        return web.json_response({"server_load": self.live.live})

    async def _version(self, http: web.Request) -> web.Response:  # noqa: ARG002
        return web.json_response({"version": _VERSION})

    async def _reset_prefix_cache(self, http: web.Request) -> web.Response:  # noqa: ARG002
        return web.json_response({"success": self.engine.clear_cache()})


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
) -> Emulator:
    """Start one emulated server. `vocabulary_tokens` is how many ids, from 0, the model may say."""
    engine = SimReplica(
        name,
        profile,
        blocks=blocks,
        block_tokens=block_tokens,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
    )
    longest = min(max_model_len, engine.cache.usable_blocks * block_tokens)
    emulator = Emulator(
        LiveReplica(engine, speed),
        Limits(model, tuple(adapters), longest),
        Vocabulary(detokenize, vocabulary_tokens),
        tokenize,
        detokenize,
        root or model,
    )
    await emulator.listen(host, port)
    return emulator


async def _empty(http: web.Request) -> web.Response:  # noqa: ARG001
    return web.Response()
