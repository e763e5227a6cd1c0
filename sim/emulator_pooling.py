"""The emulator's routes that read a prompt and generate nothing: embeddings, rerank and score.

The one rule: each text is a job of one step for the engine, so it queues, fills the cache and hits it as vLLM's pooling
requests do; the numbers that come back are drawn from a hash of the texts.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import web

from policies.blocks import Chain
from sim.emulator_refusals import invalid
from sim.emulator_requests import COMPLETIONS, Limits, Tokenize, tokenized
from sim.live import LiveReplica, finished
from sim.replica import Job

_DIMENSIONS = 16


class Server(Protocol):
    """What these routes need of the emulator."""

    live: LiveReplica
    limits: Limits
    tokenize: Tokenize

    async def read(self, http: web.Request, *needed: str) -> dict[str, Any]: ...
    def job(self, root: Chain, prompt: Sequence[int], output: Sequence[int], *, reads_cache: bool = True) -> Job: ...


def add_pooling(app: web.Application, server: Server) -> None:
    """Serve the pooling routes, the versioned paths and vLLM's bare ones."""

    async def embeddings(http: web.Request) -> web.Response:
        body = await server.read(http, "input")
        texts = _texts(body["input"], "input")
        tokens = await _computed(server, texts)
        data = [{"object": "embedding", "index": i, "embedding": _vector(text)} for i, text in enumerate(texts)]
        return web.json_response(_listed(server, {"object": "list", "data": data}, tokens))

    async def score(http: web.Request) -> web.Response:
        body = await server.read(http, "text_1", "text_2")
        left, right = _texts(body["text_1"], "text_1"), _texts(body["text_2"], "text_2")
        if len(left) == 1:
            left *= len(right)
        if len(left) != len(right):
            raise invalid("value_error", "body.text_2", "text_1 and text_2 must be of one length")
        pairs = [f"{a}{b}" for a, b in zip(left, right, strict=True)]
        tokens = await _computed(server, pairs)
        data = [{"index": i, "object": "score", "score": _score(pair)} for i, pair in enumerate(pairs)]
        return web.json_response(_listed(server, {"object": "list", "data": data}, tokens))

    async def rerank(http: web.Request) -> web.Response:
        body = await server.read(http, "query", "documents")
        documents = _texts(body["documents"], "documents")
        pairs = [f"{body['query']}{document}" for document in documents]
        tokens = await _computed(server, pairs)
        scores = [_score(pair) for pair in pairs]
        results = [
            {"index": i, "document": {"text": documents[i]}, "relevance_score": scores[i]}
            for i in sorted(range(len(scores)), key=lambda i: -scores[i])
        ]
        top = body.get("top_n")
        kept = results[:top] if isinstance(top, int) and top > 0 else results
        return web.json_response({"model": server.limits.model, "usage": {"total_tokens": tokens}, "results": kept})

    app.router.add_post("/v1/embeddings", embeddings)
    for path in ("/score", "/v1/score"):
        app.router.add_post(path, score)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        app.router.add_post(path, rerank)


async def _computed(server: Server, texts: Sequence[str]) -> int:
    """Run the texts through the engine; their tokens."""
    root = Chain.root(server.limits.model)
    prompts = [tokenized(COMPLETIONS, {"prompt": text}, server.tokenize) for text in texts]
    replies = server.live.submit([server.job(root, prompt, [0]) for prompt in prompts])
    try:
        await finished(replies)
    finally:
        server.live.abort(replies)
    return sum(map(len, prompts))


def _texts(value: object, field: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    raise invalid("string_type", f"body.{field}", "Input should be a valid string or a list of strings")


def _listed(server: Server, body: dict[str, Any], tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    return body | {"model": server.limits.model, "usage": usage}


def _vector(text: str) -> list[float]:
    digest = hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(_DIMENSIONS)
    return [byte / 127.5 - 1 for byte in digest]


def _score(text: str) -> float:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] / 255
