"""Reads one generation request the way vLLM does, or says what is wrong with it in vLLM's words.

The one rule: everything that can be refused is refused here, before the engine sees a job. Answers are not here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sim.emulator_adapters import Adapters
from sim.emulator_refusals import Refusal, invalid, missing
from sim.emulator_sampling import Sampling, read_sampling

Tokenize = Callable[[str, dict[str, Any]], list[int]]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
_PROMPT_FIELD = {CHAT: "messages", COMPLETIONS: "prompt", MESSAGES: "messages", RESPONSES: "input"}
_LENGTH_FIELDS = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    MESSAGES: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
}
_COMPLETION_TOKENS = 16  # what /v1/completions makes when the request names no length
_MOST_CHOICES = 16_384


@dataclass(frozen=True, slots=True)
class Limits:
    """What this server serves, and how many requests at a time. Token ids of a prompt are below `vocabulary_size`."""

    model: str
    adapters: Adapters
    max_model_len: int
    vocabulary_size: int = 2**31
    max_queued: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One accepted request. `max_tokens` None leaves the length to the model."""

    route: str
    model: str
    adapter: str
    prompts: tuple[tuple[int, ...], ...]
    choices: int
    max_tokens: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    ignore_eos: bool
    salt: str
    tool: str | None
    sampling: Sampling

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def read_body(raw: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object of a request."""
    if not raw:
        raise invalid("missing", "body", "Field required", None)
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(400, message, "Bad Request")
    try:
        body = json.loads(raw)
    except json.JSONDecodeError as error:
        raise invalid("json_invalid", f"body.{error.pos}", "JSON decode error", {}, cause=error.msg) from None
    except (UnicodeDecodeError, RecursionError):
        raise invalid("json_invalid", "body", "JSON decode error", {}) from None
    if not isinstance(body, dict):
        raise invalid("dict_type", "body", "Input should be a valid dictionary", body)
    return body


def read_model(body: Mapping[str, Any], limits: Limits) -> tuple[str, str]:
    """(the name asked for, its adapter or ""). A request without a model gets the base model."""
    name = body.get("model") or limits.model
    if name == limits.model:
        return name, ""
    if name in limits.adapters:
        return name, name
    aliases = ", ".join((limits.model, *limits.adapters))
    raise Refusal(404, f"The model `{name}` does not exist. Valid aliases: {aliases}.", "NotFoundError", "model")


def read_ask(route: str, body: dict[str, Any], limits: Limits, tokenize: Tokenize) -> Ask:
    """The request, tokenized and checked."""
    for field in (_PROMPT_FIELD[route], *(("max_tokens",) if route == MESSAGES else ())):
        if field not in body:
            raise missing(field, body)
    model, adapter = read_model(body, limits)
    salt = _salt(body)
    stop_field = "stop_sequences" if route == MESSAGES else "stop"
    sampling = read_sampling(body, chat=route != COMPLETIONS, stop_field=stop_field)
    options = body.get("stream_options")
    options = options if isinstance(options, dict) and route in (CHAT, COMPLETIONS) else {}
    include_usage = bool(options.get("include_usage"))
    return Ask(
        route=route,
        model=model,
        adapter=adapter,
        max_tokens=_max_tokens(route, body, limits, least=0 if sampling.echo else 1),
        prompts=tuple(_prompts(route, body, limits, tokenize)),
        choices=_count(body, "n", 1, _MOST_CHOICES) if route in (CHAT, COMPLETIONS) else 1,
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
        ignore_eos=bool(body.get("ignore_eos")),
        salt=salt,
        tool=_forced_tool(body) if route != COMPLETIONS else None,
        sampling=sampling,
    )


def _prompts(route: str, body: dict[str, Any], limits: Limits, tokenize: Tokenize) -> list[tuple[int, ...]]:
    prompt = body["prompt"] if route == COMPLETIONS else None
    if prompt is None or isinstance(prompt, str):
        return [read_text(route, body, limits, tokenize)]
    return read_prompts(prompt, "prompt", limits, tokenize)


def read_prompts(given: object, field: str, limits: Limits, tokenize: Tokenize) -> list[tuple[int, ...]]:
    """The prompts of a field that holds a text, token ids, or a list of either."""
    if isinstance(given, str):
        return [read_text(COMPLETIONS, {"prompt": given}, limits, tokenize)]
    if not isinstance(given, list) or not given:
        raise invalid("string_type", f"body.{field}", "Input should be a valid string or a list", given)
    if all(_is_id(item) for item in given):
        return [_ids(given, field, limits)]
    return [
        read_text(COMPLETIONS, {"prompt": item}, limits, tokenize)
        if isinstance(item, str)
        else _ids(item, field, limits)
        for item in given
    ]


def read_text(route: str, body: dict[str, Any], limits: Limits, tokenize: Tokenize) -> tuple[int, ...]:
    """Token ids of a body, as many as may be. vLLM stops to count a text that is too long."""
    ids = tokenized(route, body, tokenize)
    if len(ids) > limits.max_model_len:
        raise _too_long(limits.max_model_len + 1, limits, "at least ")
    if len(ids) == limits.max_model_len:
        raise _too_long(len(ids), limits)
    return tuple(ids)


def tokenized(route: str, body: dict[str, Any], tokenize: Tokenize) -> list[int]:
    """Token ids of a body; what the tokenizer refuses is the client's fault."""
    try:
        ids = tokenize(route, body)
    except (ValueError, TypeError, KeyError) as error:
        raise Refusal(400, f"The prompt cannot be tokenized: {type(error).__name__}") from error
    if not ids:
        raise Refusal(400, "The decoder prompt cannot be empty")
    return ids


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _ids(item: object, field: str, limits: Limits) -> tuple[int, ...]:
    if not isinstance(item, list) or not item or not all(_is_id(token) for token in item):
        raise invalid("list_type", f"body.{field}", "Input should be a valid list of token ids", item)
    for token in item:
        if not 0 <= token < limits.vocabulary_size:
            raise Refusal(400, f"Token id {token} is out of vocabulary")
    if len(item) >= limits.max_model_len:
        raise _too_long(len(item), limits)
    return tuple(item)


def _salt(body: Mapping[str, Any]) -> str:
    salt = body.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
        raise Refusal(400, message, param="cache_salt")
    if len(salt) > 128 or any(mark in salt for mark in "@/\\\0"):
        message = (
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL. "
            "(parameter=cache_salt)"
        )
        raise Refusal(400, message, param="cache_salt")
    return salt


def _count(body: Mapping[str, Any], field: str, default: int, most: int = 2**31, least: int = 1) -> int:
    value = body.get(field)
    if value is None:
        return default
    if not _is_id(value):
        raise invalid("int_type", f"body.{field}", "Input should be a valid integer", value)
    if not least <= value <= most:
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise Refusal(400, f"{field} must be {bound}, got {value}. (parameter={field}, value={value})", param=field)
    return int(value)


def _max_tokens(route: str, body: Mapping[str, Any], limits: Limits, least: int) -> int | None:
    for field in _LENGTH_FIELDS[route]:
        if body.get(field) is None:
            continue
        asked = _count(body, field, 1, least=least)
        if asked > limits.max_model_len:
            message = (
                f"{field}={asked} cannot be greater than max_model_len={limits.max_model_len}. Please request fewer "
                f"output tokens. (parameter={field}, value={asked})"
            )
            raise Refusal(400, message, param=field)
        return asked
    return _COMPLETION_TOKENS if route == COMPLETIONS else None


def _too_long(tokens: int, limits: Limits, about: str = "") -> Refusal:
    message = (
        f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt contains "
        f"{about}{tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        f"length of the input prompt. (parameter=input_tokens, value={tokens})"
    )
    return Refusal(400, message, param="input_tokens")


def _forced_tool(body: Mapping[str, Any]) -> str | None:
    """The tool the answer must call, in OpenAI's or Anthropic's spelling; None when the model is free not to."""
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if isinstance(name, str):
            return name
        choice = choice.get("type")
    if choice not in ("required", "any") or not isinstance(tools, list) or not tools:
        return None
    first = tools[0]
    function = first.get("function", first) if isinstance(first, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
