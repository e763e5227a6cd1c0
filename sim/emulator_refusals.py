"""What the emulator says when it does not serve a request: vLLM's error bodies and status codes.

The one rule: errors about values name the parameter, errors about the body's shape name the place in it, and unknown
paths and methods get the bare `detail` of the web framework below vLLM.
"""

import hmac
from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sim.emulator_json import answered
from sim.errors import EngineDied

_GUARDED = ("/v1/", "/v2/")  # an API key guards these and nothing else: /tokenize, /metrics, /load stay open


class Refusal(Exception):  # noqa: N818 -- an answer, not a fault
    """A request the server does not serve; `body` is the JSON it answers."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def invalid(kind: str, where: str, message: str, given: object, *, cause: str = "") -> Refusal:
    """A body that does not fit the schema at `where`. What was `given` is not repeated, only its size."""
    size = f"<{type(given).__name__} of {len(given)} items>" if isinstance(given, dict | list) else "<value>"
    shown = "None" if given is None else size
    context = f", 'ctx': {{'error': '{cause}'}}" if cause else ""
    detail = f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': '{shown}'{context}}}"
    return Refusal(400, f"1 validation error:\n  {detail}", "Bad Request", where)


def missing(field: str, body: Mapping[str, object]) -> Refusal:
    """The body lacks a field it must have."""
    return invalid("missing", f"body.{field}", "Field required", dict(body))


def engine_death() -> Refusal:
    """What a request gets that the engine will never finish."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return Refusal(500, message, "InternalServerError")


def busy() -> Refusal:
    """The queue is as long as it may be."""
    message = "The engine is currently busy and cannot accept new requests."
    return Refusal(503, f"{message} Please try again later or on a different instance.", "Service Unavailable")


def shutting_down() -> Refusal:
    """What a request gets that needs the tokenizer of a server that drains."""
    return Refusal(500, "cannot schedule new futures after shutdown", "InternalServerError")


def wrong_rank(rank: int, ranks: int) -> Refusal:
    """A data-parallel rank that is not here."""
    return Refusal(400, f"data_parallel_rank {rank} is out of range [0, {ranks}).")


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler raised into the JSON that vLLM answers."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return answered(refusal.body, refusal.status)
    except EngineDied:
        return answered(engine_death().body, 500)
    except web.HTTPNotFound:
        return answered({"detail": "Not Found"}, 404)
    except web.HTTPMethodNotAllowed as error:
        return answered({"detail": "Method Not Allowed"}, 405, {"Allow": ", ".join(sorted(error.allowed_methods))})


def key_guard(api_key: str) -> Middleware:
    """Let through to the guarded paths only those who bring this key."""
    wanted = f"Bearer {api_key}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        brought = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if request.path.startswith(_GUARDED) and not hmac.compare_digest(brought, wanted):
            return answered({"error": "Unauthorized"}, 401)
        return await handler(request)

    return guard
