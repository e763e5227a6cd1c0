"""The emulator's routes that read a prompt and generate nothing: embeddings, rerank and score.

The one rule: each text is a job of one step for the engine, so it queues, fills the cache and hits it as vLLM's pooling
requests do; the numbers that come back are drawn from a hash of the texts.
"""

import base64
import hashlib
import struct
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from policies.blocks import packed
from sim.emulator_json import answered
from sim.emulator_pages import Origin
from sim.emulator_ranks import RANK
from sim.emulator_refusals import invalid
from sim.emulator_requests import read_prompts
from sim.emulator_server import Server
from sim.live import finished

_DIMENSIONS = 16


def add_pooling(app: web.Application, server: Server) -> None:
    """Serve the pooling routes, the versioned paths and vLLM's bare ones."""

    async def embeddings(http: web.Request) -> web.Response:
        body = await server.read(http, "input")
        prompts = read_prompts(body["input"], "input", server.limits, server.tokenize)
        tokens = await _computed(server, http, prompts)
        as_text = body.get("encoding_format") == "base64"
        data = [
            {"index": index, "object": "embedding", "embedding": _base64(vector) if as_text else vector}
            for index, vector in enumerate(map(_vector, prompts))
        ]
        return answered(_listed(server, "embd", data, tokens))

    async def score(http: web.Request) -> web.Response:
        body = await server.read(http, "text_1", "text_2")
        left, right = _texts(body["text_1"], "text_1"), _texts(body["text_2"], "text_2")
        if len(left) == 1:
            left *= len(right)
        if len(left) != len(right):
            raise invalid("value_error", "body.text_2", "text_1 and text_2 must be of one length", right)
        scores, tokens = await _scored(server, http, list(zip(left, right, strict=True)))
        data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
        return answered(_listed(server, "score", data, tokens))

    async def rerank(http: web.Request) -> web.Response:
        body = await server.read(http, "query", "documents")
        documents = _texts(body["documents"], "documents")
        scores, tokens = await _scored(server, http, [(str(body["query"]), document) for document in documents])
        results = [
            {"index": index, "document": {"text": documents[index]}, "relevance_score": scores[index]}
            for index in sorted(range(len(scores)), key=lambda index: -scores[index])
        ]
        top = body.get("top_n")
        kept = results[:top] if isinstance(top, int) and top > 0 else results
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return answered(
            {"id": server.answer_id("rerank"), "model": server.limits.model, "usage": usage, "results": kept}
        )

    app.router.add_post("/v1/embeddings", embeddings)
    for path in ("/score", "/v1/score"):
        app.router.add_post(path, score)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        app.router.add_post(path, rerank)


async def _computed(server: Server, http: web.Request, prompts: Sequence[Sequence[int]]) -> int:
    """Run the prompts through the engine; their tokens."""
    rank = server.ranks.chosen(http.headers.get(RANK, ""))
    with server.running(rank, [server.work(Origin(), prompt, [0]) for prompt in prompts]) as replies:
        await finished(replies)
    rank.stopped += len(prompts)
    return sum(map(len, prompts))


async def _scored(server: Server, http: web.Request, pairs: Sequence[tuple[str, str]]) -> tuple[list[float], int]:
    prompts = read_prompts([first + second for first, second in pairs], "input", server.limits, server.tokenize)
    tokens = await _computed(server, http, prompts)
    return [_digest(prompt)[0] / 255 for prompt in prompts], tokens


def _texts(value: object, field: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    raise invalid("string_type", f"body.{field}", "Input should be a valid string or a list of strings", value)


def _listed(server: Server, kind: str, data: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    head = {"id": server.answer_id(kind), "object": "list", "created": int(time.time())}
    return head | {"model": server.limits.model, "data": data, "usage": usage}


def _vector(prompt: Sequence[int]) -> list[float]:
    return [byte / 127.5 - 1 for byte in _digest(prompt)]


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _digest(prompt: Sequence[int]) -> bytes:
    return hashlib.shake_128(packed(prompt)).digest(_DIMENSIONS)
