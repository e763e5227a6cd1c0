"""What the emulator says when it does not serve a request: vLLM's error bodies and status codes.

The one rule: errors about values name the parameter, errors about the body's shape name the place in it, and unknown
paths and methods get the bare `detail` of the web framework below vLLM.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refusal(Exception):  # noqa: N818 -- an answer, not a fault
    """A request the server does not serve; `body` is the JSON it answers."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def invalid(kind: str, where: str, message: str) -> Refusal:
    """A body that does not fit the schema."""
    return Refusal(
        400, f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'}}", "Bad Request", where
    )


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler raised into the JSON that vLLM answers."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return web.json_response(refusal.body, status=refusal.status)
    except web.HTTPNotFound:
        return web.json_response({"detail": "Not Found"}, status=404)
    except web.HTTPMethodNotAllowed as error:
        headers = {"Allow": ", ".join(sorted(error.allowed_methods))}
        return web.json_response({"detail": "Method Not Allowed"}, status=405, headers=headers)
