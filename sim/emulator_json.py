"""JSON as vLLM's server writes it: compact, UTF-8, content type without a charset; and server-sent events of it."""

import json
from collections.abc import Mapping

from aiohttp import web


def compact(value: object) -> bytes:
    """A lone surrogate, which a client may have sent in a name, becomes a question mark."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def answered(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer of one JSON value."""
    return web.Response(body=compact(value), status=status, headers=headers, content_type="application/json")


def event(value: object) -> bytes:
    """An event without a name, as the completions routes send."""
    return b"data: " + compact(value) + b"\n\n"


def named_event(value: Mapping[str, object]) -> bytes:
    """An event named by its `type`, as messages and responses send."""
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + compact(value) + b"\n\n"


def around(value: object, mark: str) -> tuple[bytes, bytes]:
    """A formatted value split where the string `mark` stands in it, quotes kept."""
    before, _, after = compact(value).partition(mark.encode())
    return before, after


def unescaped(inside: bytes) -> str:
    """The text of which this is the inside of a JSON string."""
    text: str = json.loads(b'"' + inside + b'"')
    return text
