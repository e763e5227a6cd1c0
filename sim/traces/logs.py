"""What gateways and tracers log of requests: LiteLLM, Langfuse, LMCache's agent log.

    LiteLLM     startTime, endTime, completionStartTime (epoch s), prompt_tokens, completion_tokens, messages, metadata
                (docs.litellm.ai/docs/proxy/logging_spec); `cache_hit` is of its own response cache and is not read
    Langfuse    type GENERATION, startTime, endTime, input, output, usageDetails, in camel or snake case
    LMCache     timestamp (epoch µs), input, output, session_id (LMCache/lmcache-agent-trace)

The one rule: logs often hold no text; then a row tells lengths only. Not here: spans (`otel`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from sim.traces.bodies import answer_of, cached_tokens_of
from sim.traces.format import Format, Reader, Reading, having, stateless
from sim.traces.rows import (
    Ask,
    BadRow,
    Item,
    LeftOut,
    Row,
    members_or_none,
    moment,
    name_of,
    present,
    seconds,
    tokens,
    tokens_or_none,
)
from sim.traces.texts import CHAT, COMPLETIONS, text_of


def ask_of(prompt: object, answer: object, tools: object = None) -> Ask | None:
    """What a log calls the input: text, messages, or an object that holds messages; None when there is none."""
    prompt = _read(prompt)
    told = text_of(_read(answer)) if answer else None
    if isinstance(prompt, Mapping) and "messages" in prompt:
        tools = prompt.get("tools", tools)
        prompt = prompt["messages"]
    if isinstance(prompt, list) and prompt and all(isinstance(message, Mapping) for message in prompt):
        return Ask(CHAT, {"messages": prompt, **({"tools": tools} if tools else {})}, told)
    return Ask(COMPLETIONS, {"prompt": prompt}, told) if isinstance(prompt, str) and prompt else None


def _read(value: object) -> object:
    """Exports write lists and objects as JSON text."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _between(began_s: float | None, ended_s: float | None) -> float | None:
    return None if began_s is None or ended_s is None or ended_s < began_s else ended_s - began_s


def _litellm(item: Item) -> Iterable[Row]:
    if item.get("status") == "failure":
        raise LeftOut("a request that failed")
    began_s = moment(item, "startTime")
    if began_s is None:
        raise BadRow("startTime is missing")
    about = members_or_none(item, "metadata")
    response = _read(item.get("response"))
    reply = response if isinstance(response, Mapping) else {}
    options = members_or_none(item, "model_parameters")
    redacted = "redacted-by-litellm" in str(item.get("messages"))[:300]
    ask = None if redacted else ask_of(item.get("messages"), answer_of(reply), options.get("tools"))
    yield Row(
        time_s=began_s,
        prompt_tokens=_some(tokens(item, "prompt_tokens")),
        output_tokens=tokens(item, "completion_tokens"),
        ask=ask,
        session=name_of(item, "trace_id"),
        user=name_of(item, "end_user"),
        tenant=name_of(about, "user_api_key_team_id", "user_api_key_hash") or "",
        route=name_of(item, "call_type") or "",
        model=name_of(item, "model_group", "model") or "",
        took_s=_between(began_s, moment(item, "endTime")),
        ttft_s=_between(began_s, moment(item, "completionStartTime")),
        cached_tokens=cached_tokens_of(members_or_none(reply, "usage")),
    )


def _langfuse(item: Item) -> Iterable[Row]:
    if item.get("type") != "GENERATION":
        raise LeftOut("an observation that is no generation")
    began_s = moment(item, "startTime", "start_time")
    if began_s is None:
        raise BadRow("startTime is missing")
    usage = _read(present(item, "usageDetails", "usage_details", "usage")) or {}
    if not isinstance(usage, Mapping):
        raise BadRow("usageDetails is no object")
    prompt, cached = _langfuse_prompt(usage)
    ask = ask_of(item.get("input"), item.get("output"))
    if prompt is None and ask is None:
        raise LeftOut("neither lengths nor text")
    yield Row(
        time_s=began_s,
        prompt_tokens=prompt,
        output_tokens=tokens_or_none(usage, "output", "completion_tokens"),
        ask=ask,
        session=name_of(item, "sessionId", "session_id", "traceId", "trace_id"),
        user=name_of(item, "userId", "user_id"),
        route=name_of(item, "traceName", "trace_name", "name") or "",
        model=name_of(item, "model", "providedModelName", "provided_model_name") or "",
        took_s=_between(began_s, moment(item, "endTime", "end_time")),
        ttft_s=_between(began_s, moment(item, "completionStartTime", "completion_start_time")),
        cached_tokens=cached,
    )


_CACHED = ("input_cached_tokens", "cache_read_input_tokens", "input_cache_read")


def _langfuse_prompt(usage: Item) -> tuple[int | None, int | None]:
    """Prompt and cached tokens: `input` leaves out every part that is told beside it, cached ones among them."""
    prompt = tokens_or_none(usage, "input", "prompt_tokens")
    if prompt is None:
        return None, None
    apart: dict[str, Any] = {
        name: tokens_or_none(usage, name) or 0
        for name in usage
        if name.startswith("input_") or name in ("cache_read_input_tokens", "cache_creation_input_tokens")
    }
    cached = [apart[name] for name in _CACHED if name in apart]
    return prompt + sum(apart.values()), cached[0] if cached else None


def _lmcache(reading: Reading) -> Reader:
    unit_s = reading.unit_s("us")

    def read(item: Item) -> Iterable[Row]:
        time_s = seconds(item, "timestamp", unit_s)
        prompt, answer = item.get("input"), item.get("output")
        if not isinstance(prompt, str) or not isinstance(answer, str):
            raise BadRow("input or output is no text")
        if not prompt:
            raise LeftOut("the prompt is empty")
        ask = Ask(COMPLETIONS, {"prompt": prompt}, answer)
        yield Row(time_s, None, None, ask=ask, session=name_of(item, "session_id"))

    return read


def _some(prompt_tokens: int) -> int:
    if not prompt_tokens:
        raise LeftOut("the prompt is empty")
    return prompt_tokens


FORMATS = (
    Format("litellm", having("startTime", "prompt_tokens", "completion_tokens"), stateless(_litellm)),
    Format(
        "langfuse",
        lambda item: "type" in item and ("startTime" in item or "start_time" in item),
        stateless(_langfuse),
    ),
    Format("lmcache", having("timestamp", "input", "output", "session_id"), _lmcache),
)
