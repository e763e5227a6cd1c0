"""A replica that looks like a vLLM server from outside: its routes, errors, streams and metrics, on an emulated engine.

The one rule: what a client or a router can observe of the prefix cache, the queue and the pace is the engine model's
doing; only the words are invented. A request that names its length gets exactly that many tokens, another a drawn
number; the same prompt gets the same answer. A client that goes away aborts its jobs.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from policies.blocks import Chain
from sim.cost import Profile
from sim.emulator_about import add_about
from sim.emulator_adapters import Adapters
from sim.emulator_answers import Vocabulary
from sim.emulator_events import KEPT_BATCHES, Telling
from sim.emulator_faults import Faults, add_faults
from sim.emulator_generating import add_generating
from sim.emulator_loading import add_loading
from sim.emulator_pages import Origin
from sim.emulator_pooling import add_pooling
from sim.emulator_ranks import Rank, Ranks, ranks_of
from sim.emulator_refusals import answer_errors, busy, key_guard, missing, shutting_down
from sim.emulator_requests import Limits, Tokenize, read_body, read_model
from sim.emulator_server import Work
from sim.emulator_tokens import add_tokens
from sim.jobs import Job
from sim.live import LiveReplica, Reply
from sim.replica import SimReplica

_KEEP_ALIVE_S = 5.0  # what uvicorn does
_BODY_BYTES = 64 * 2**20


class Emulator:
    """One running server. Make it with `start`."""

    def __init__(
        self,
        ranks: Ranks,
        limits: Limits,
        vocabulary: Vocabulary,
        tokenize: Tokenize,
        detokenize: Callable[[list[int]], str],
        root: str,
        faults: Faults | None,
        api_key: str = "",
    ) -> None:
        self.ranks = ranks
        self.limits = limits
        self.started_unix_s = time.time()
        self.url = ""
        self.vocabulary = vocabulary
        self.faults = faults or Faults()
        self.draining = False
        self.detokenize = detokenize
        self.root = root
        self.rejected = 0
        self._tokenize = tokenize
        self._switchable = faults is not None
        self._api_key = api_key
        self._runner: web.AppRunner | None = None
        self._asked = 0

    @property
    def live(self) -> LiveReplica:
        """Of the first rank, as the next two."""
        return self.ranks.first.live

    @property
    def engine(self) -> SimReplica:
        return self.live.engine

    @property
    def telling(self) -> Telling:
        return self.ranks.first.telling

    async def listen(self, host: str, port: int) -> None:
        """Begin to serve; port 0 takes any free one."""
        for rank in self.ranks:
            rank.live.start()
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
            for rank in self.ranks:
                rank.telling.bind(self._runner.addresses[0][0])
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
        for rank in self.ranks:
            await rank.live.close()
            await rank.telling.close()

    def _application(self) -> web.Application:
        guards = [key_guard(self._api_key)] if self._api_key else []
        app = web.Application(client_max_size=_BODY_BYTES, middlewares=[answer_errors, *guards])
        if self._switchable:
            add_faults(app, self)
        add_generating(app, self)
        add_pooling(app, self)
        add_tokens(app, self)
        add_about(app, self)
        add_loading(app, self.limits)
        return app

    def drain(self) -> None:
        """Take no more requests, as vLLM that got SIGTERM with a `--shutdown-timeout`: /health goes on to say 200."""
        self.draining = True

    def tokenize(self, route: str, body: dict[str, Any]) -> list[int]:
        if self.draining:
            raise shutting_down()
        return self._tokenize(route, body)

    def work(self, origin: Origin, prompt: Sequence[int], output: Sequence[int], *, reads_cache: bool = True) -> Work:
        """A job under an id of its own."""
        self._asked += 1
        root = Chain.root(self.limits.model, f"{origin.adapter}\0{origin.adapter_path}", origin.salt)
        block_tokens = self.engine.cache.block_tokens
        job = Job.of(str(self._asked), root, prompt, output, block_tokens, reads_cache=reads_cache)
        return Work(job, [*prompt, *output], origin)

    @contextmanager
    def running(self, rank: Rank, works: Sequence[Work]) -> Iterator[list[Reply]]:
        """The engine has these as long as the caller waits for them."""
        limit = self.limits.max_queued
        if limit is not None and rank.live.live >= limit:
            self.rejected += 1
            raise busy()
        replies = rank.live.submit([work.job for work in works])
        for work in works:
            rank.telling.opened(work.job.keys, work.tokens, work.origin)
        try:
            yield replies
        finally:
            rank.live.abort(replies)
            for work in works:
                rank.telling.closed(work.job.keys)

    def answer_id(self, kind: str) -> str:
        """An id for the answer to the request that was planned last."""
        return f"{kind}-{self.answer_name()}"

    def answer_name(self) -> str:
        """What tells its answer from any other."""
        return hashlib.sha256(f"{self.engine.name} {self._asked}".encode()).hexdigest()[:16]

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
    max_queued: int | None = None,
    faults: Faults | None = None,
    kv_events: int | None = None,
    kept_batches: int = KEPT_BATCHES,
    ranks: int = 1,
) -> Emulator:
    """Start one emulated server.

    `vocabulary_tokens` is how many ids, from 0, the model may say; a prompt's ids are below `vocabulary_size`. With an
    `api_key` the paths below /v1 and /v2 want it as a bearer. `kv_events` is the port to publish the cache's events on,
    replayed from the next port; 0 takes any two, None publishes nothing; of so many `ranks`, each has a port for its
    events, and behind those one for its replays. `max_queued` is the most requests a rank takes at a time, running and
    waiting; with `faults` a route switches them.
    """

    def engine() -> SimReplica:
        return SimReplica(
            name,
            profile,
            blocks=blocks,
            block_tokens=block_tokens,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            record_events=kv_events is not None,
        )

    engines = ranks_of(ranks, engine, speed, kv_events, kept_batches)
    longest = min(max_model_len, engines.first.live.engine.cache.usable_blocks * block_tokens)
    emulator = Emulator(
        engines,
        Limits(model, Adapters(adapters), longest, vocabulary_size, max_queued),
        Vocabulary(detokenize, vocabulary_tokens),
        tokenize,
        detokenize,
        root or model,
        faults,
        api_key,
    )
    await emulator.listen(host, port)
    return emulator
