"""Usage figures read from the end of a reply, without parsing the reply.

Chat and completions say `prompt_tokens_details.cached_tokens`, Responses `input_tokens_details.cached_tokens`, and
Anthropic messages count apart what was read from the cache (`cache_read_input_tokens`), what was newly stored there
(`cache_creation_input_tokens`), and the rest (`input_tokens`) (vLLM 0.32). What is not said is None.
A quote inside JSON text is escaped, so `"usage"` in the reply's own words can't be taken for the member.
"""

import re
from typing import Final

from policies.values import Value

_FIGURE: Final = re.compile(
    rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|cached_tokens'
    rb'|cache_read_input_tokens|cache_creation_input_tokens)"\s*:\s*(\d+)'
)

_CLIENTS_FAULT: Final = re.compile(
    rb'"error":[^\n]*(?:"code":\s*4\d\d\b|"type":\s*"(?:invalid_request_error|authentication_error|permission_error'
    rb'|not_found_error|request_too_large|rate_limit_error|BadRequestError|NotFoundError)")'
)
_ABORTED: Final = re.compile(rb'"finish_reason":\s*"abort"')


class Usage(Value, frozen=True):
    """What the engine reports of one request, in tokens."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


UNKNOWN: Final = Usage(None, None, None)


def usage(tail: bytes) -> Usage:
    """The last usage object in `tail`; `UNKNOWN` when there is none."""
    start = tail.rfind(b'"usage"')
    if start < 0:
        return UNKNOWN
    figures = {name: int(value) for name, value in _FIGURE.findall(tail, start)}
    cached = figures.get(b"cached_tokens", figures.get(b"cache_read_input_tokens"))
    prompt = figures.get(b"prompt_tokens")
    if prompt is None and b"input_tokens" in figures:
        # Anthropic's three parts make the prompt; OpenAI's Responses count all in and name no parts like these.
        parts = (b"input_tokens", b"cache_read_input_tokens", b"cache_creation_input_tokens")
        prompt = sum(figures.get(part, 0) for part in parts)
    return Usage(prompt, cached, figures.get(b"completion_tokens", figures.get(b"output_tokens")))


def error_event(tail: bytes) -> bool:
    """Whether an event stream told an error under its status 200 (an engine that died mid-stream does)."""
    return b'data: {"error"' in tail or b"event: error\n" in tail


def clients_fault(tail: bytes) -> bool:
    """Whether the error an event told is one of the client's own (its code is a 4xx)."""
    return _CLIENTS_FAULT.search(tail) is not None


def aborted(tail: bytes) -> bool:
    """Whether the engine answered 200 but gave up the request, as one that is shutting down does."""
    return b'"abort"' in tail and _ABORTED.search(tail) is not None
