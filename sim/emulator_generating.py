"""The emulator's routes that generate: one request, from its bytes to the last byte of its answer.

The one rule: a client that goes away aborts its jobs, whatever it waits for.
"""

from collections.abc import Sequence

from aiohttp import web

from sim.emulator_dialects import dialect_of
from sim.emulator_faults import suffered
from sim.emulator_json import answered, event
from sim.emulator_logprobs import Token
from sim.emulator_pages import Origin
from sim.emulator_parts import Part, abandoned, part_of, tokens_of
from sim.emulator_ranks import RANK, Rank
from sim.emulator_refusals import engine_death
from sim.emulator_requests import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Ask, read_ask, read_body
from sim.emulator_server import Server, Work
from sim.emulator_wire import DONE, Choice, Dialect, Usage
from sim.errors import EngineDied
from sim.live import Reply, finished, more

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


def add_generating(app: web.Application, server: Server) -> None:
    """Serve these routes."""

    async def generate(http: web.Request) -> web.StreamResponse:
        try:
            return await _Generation(server, http).answer()
        except ConnectionResetError:  # the client left while something was written to it
            return web.Response()

    for route in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
        app.router.add_post(route, generate)


class _Generation:
    """One request."""

    def __init__(self, server: Server, http: web.Request) -> None:
        self._server = server
        self._http = http

    async def answer(self) -> web.StreamResponse:
        server, http = self._server, self._http
        body = read_body(await http.read(), http.headers.get("Content-Type", ""))
        cut_after = await suffered(server.faults.drawn())
        ask = read_ask(http.path, body, server.limits, server.tokenize)
        rank = server.ranks.chosen(http.headers.get(RANK, ""))
        dialect = dialect_of(ask, http.headers.get("X-Request-Id") or server.answer_name())
        if server.draining:
            return await self._abandoned(ask, dialect)
        parts, works = self._planned(ask)
        with server.running(rank, works) as replies:
            if ask.stream:
                return await self._streamed(ask, dialect, rank, parts, replies, cut_after)
            await finished(replies)
        if cut_after is not None:
            return self._cut(web.Response())
        _count(rank, parts)
        return answered(dialect.whole(self._choices(ask, parts), self._usage(ask, parts, replies)))

    async def _streamed(
        self,
        ask: Ask,
        dialect: Dialect,
        rank: Rank,
        parts: Sequence[Part],
        replies: Sequence[Reply],
        cut_after: int | None,
    ) -> web.StreamResponse:
        response = await self._opened()
        sent = [0] * len(parts)
        left = sum(len(part.ids) for part in parts)
        out = [dialect.head()]  # goes out with the first token
        while left:
            if cut_after is not None and sum(sent) >= cut_after:
                return self._cut(response)
            try:
                await more(replies)
            except EngineDied:
                await response.write(event(engine_death().body) + DONE)
                break
            for choice, (part, reply) in enumerate(zip(parts, replies, strict=True)):
                for position in range(sent[choice], reply.made):
                    end = part.end if position + 1 == len(part.ids) else None
                    out.append(dialect.piece(choice, part.ids[position], part.escaped[position], end))
                left -= reply.made - sent[choice]
                sent[choice] = reply.made
            if not left:
                _count(rank, parts)
                out.append(dialect.tail(self._usage(ask, parts, replies)))
            await response.write(b"".join(out))
            out.clear()
        await response.write_eof()
        return response

    async def _abandoned(self, ask: Ask, dialect: Dialect) -> web.StreamResponse:
        """vLLM that drains takes no more requests and yet says 200."""
        parts = [abandoned()] * (len(ask.prompts) * ask.choices)
        usage = Usage(ask.prompt_tokens, 0, 0, 0)
        if not ask.stream:
            return answered(dialect.whole([Choice(part.text, [], part.end) for part in parts], usage))
        response = await self._opened()
        await response.write_eof(dialect.tail(usage))
        return response

    async def _opened(self) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(self._http)
        return response

    def _cut(self, response: web.StreamResponse) -> web.StreamResponse:
        if self._http.transport is not None:
            self._http.transport.abort()
        return response

    def _planned(self, ask: Ask) -> tuple[list[Part], list[Work]]:
        server = self._server
        origin = self._origin(ask)
        parts, works = [], []
        for prompt in ask.prompts:
            room = server.limits.max_model_len - len(prompt)
            opening = server.detokenize(list(prompt)) if ask.sampling.echo else ""
            for choice in range(ask.choices):
                part = part_of(ask, prompt, opening, choice, server.vocabulary, room)
                parts.append(part)
                works.append(server.work(origin, prompt, part.ids, reads_cache=ask.sampling.reads_cache))
        return parts, works

    def _origin(self, ask: Ask) -> Origin:
        if not ask.adapter:
            return Origin(salt=ask.salt)
        loaded = self._server.limits.adapters[ask.adapter]
        return Origin(ask.adapter, loaded.number, loaded.path, ask.salt)

    def _choices(self, ask: Ask, parts: Sequence[Part]) -> list[Choice]:
        vocabulary, prompts = self._server.vocabulary, [self._shown(ask, prompt) for prompt in ask.prompts]
        return [
            Choice(part.text, tokens_of(part.ids, vocabulary), part.end, prompts[index // ask.choices])
            for index, part in enumerate(parts)
        ]

    def _shown(self, ask: Ask, prompt: Sequence[int]) -> list[Token]:
        if not ask.sampling.shows_prompt:
            return []
        return [(token, self._server.detokenize([token])) for token in prompt]

    def _usage(self, ask: Ask, parts: Sequence[Part], replies: Sequence[Reply]) -> Usage:
        """Of several prompts or choices, vLLM 0.32 says what the last one found, in a stream the first."""
        block_tokens = self._server.ranks.first.live.engine.cache.block_tokens
        cached = replies[0 if ask.stream else -1].cached_tokens
        full = sum(len(prompt) // block_tokens * block_tokens for prompt in ask.prompts)
        return Usage(ask.prompt_tokens, cached, max(0, full - cached), sum(len(part.ids) for part in parts))


def _count(rank: Rank, parts: Sequence[Part]) -> None:
    rank.stopped += sum(part.end.why == "stop" for part in parts)
