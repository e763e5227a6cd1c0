"""The emulator's routes that only count or translate tokens. They cost the engine nothing."""

from aiohttp import web

from sim.emulator_json import answered
from sim.emulator_refusals import Refusal, missing
from sim.emulator_requests import CHAT, COMPLETIONS, MESSAGES, tokenized
from sim.emulator_server import Server


def add_tokens(app: web.Application, server: Server) -> None:
    """Serve these routes."""

    async def count(http: web.Request) -> web.Response:
        body = await server.read(http, "messages")
        tokens = len(tokenized(MESSAGES, body, server.tokenize))
        return answered({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})

    async def tokenize(http: web.Request) -> web.Response:
        body = await server.read(http)
        if "messages" not in body and "prompt" not in body:
            raise missing("prompt", body)
        ids = tokenized(CHAT if "messages" in body else COMPLETIONS, body, server.tokenize)
        strings = [server.detokenize([token]) for token in ids] if body.get("return_token_strs") else None
        sizes = {"count": len(ids), "max_model_len": server.limits.max_model_len}
        return answered(sizes | {"tokens": ids, "token_strs": strings})

    async def detokenize(http: web.Request) -> web.Response:
        body = await server.read(http, "tokens")
        try:
            return answered({"prompt": server.detokenize(body["tokens"])})
        except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
            raise Refusal(400, f"The tokens cannot be detokenized: {type(error).__name__}") from error

    app.router.add_post("/v1/messages/count_tokens", count)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", detokenize)
