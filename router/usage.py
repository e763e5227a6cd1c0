"""Usage figures read from the end of a reply, without parsing the reply.

Chat and completions say `prompt_tokens_details.cached_tokens`, Responses `input_tokens_details.cached_tokens`, and
Anthropic messages count apart what was read from the cache (`cache_read_input_tokens`), what was newly stored there
(`cache_creation_input_tokens`), and the rest (`input_tokens`) (vLLM 0.32). What is not said is None.
A quote inside JSON text is escaped, so `"usage"` in the reply's own words can't be taken for the member.
"""

import re
from typing import Final

from policies.values import Value

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
    said = tail[start:]
    prompt = _figure(said, b'"prompt_tokens"')
    output = _figure(said, b'"completion_tokens"')
    cached = _figure(said, b'"cached_tokens"')
    if cached is None:
        cached = _figure(said, b'"cache_read_input_tokens"')
    if output is None:
        output = _figure(said, b'"output_tokens"')
    if prompt is None:
        prompt = _figure(said, b'"input_tokens"')
        if prompt is not None:
            # Anthropic's three parts make the prompt; OpenAI's Responses count all in and name no parts like these.
            for part in (b'"cache_read_input_tokens"', b'"cache_creation_input_tokens"'):
                prompt += _figure(said, part) or 0
    return Usage(prompt, cached, output)


def _figure(said: bytes, name: bytes) -> int | None:
    """The last number of this name. Searching for the name costs a fifth of an expression that tries every quote."""
    at = said.rfind(name)
    while at >= 0:
        value, digits = 0, 0
        for place in range(at + len(name), len(said)):
            byte = said[place]
            if 48 <= byte <= 57:  # 0 to 9
                value, digits = 10 * value + byte - 48, digits + 1
            elif digits or byte not in (58, 32, 9, 10, 13):  # a colon, or white space
                break
        if digits:
            return value
        at = said.rfind(name, 0, at)
    return None


def error_event(tail: bytes) -> bool:
    """Whether an event stream told an error under its status 200 (an engine that died mid-stream does)."""
    return tail.rfind(b"error") >= 0 and (b'data: {"error"' in tail or b"event: error\n" in tail)


def clients_fault(tail: bytes) -> bool:
    """Whether the error an event told is one of the client's own (its code is a 4xx)."""
    return _CLIENTS_FAULT.search(tail) is not None


def aborted(tail: bytes) -> bool:
    """Whether the engine answered 200 but gave up the request, as one that is shutting down does."""
    return tail.rfind(b'"abort"') >= 0 and _ABORTED.search(tail) is not None  # backwards takes less time than `in`
