"""OpenTelemetry spans of generative AI: OTLP JSON, or one flat span a line.

    attributes      gen_ai.operation.name, gen_ai.usage.input_tokens, gen_ai.input.messages, gen_ai.conversation.id, …
                    (semantic conventions 1.37, older names beside them)

The one rule: instrumentations leave contents out unless told otherwise, so most spans tell lengths only. Their input
tokens include cached ones. Not here: spans of other work, which are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from sim.traces.format import Format, stateless
from sim.traces.logs import ask_of
from sim.traces.rows import BadRow, Item, LeftOut, Row, moment, name_of, objects, present, tokens_or_none

_ANSWERED = ("chat", "text_completion", "generate_content")


def _resources(item: Item) -> Iterable[Row]:
    for resource in objects(item, "resourceSpans"):
        for scope in objects(resource, "scopeSpans"):
            for span in objects(scope, "spans"):
                try:
                    yield from _span(span)
                except LeftOut:
                    continue


def _span(item: Item) -> Iterator[Row]:
    told = attributes(item.get("attributes"))
    if told.get("gen_ai.operation.name", "chat") not in _ANSWERED or "gen_ai.request.model" not in told:
        raise LeftOut("a span that is no generation")
    prompt = tokens_or_none(told, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    ask = ask_of(
        _messages(told),
        _said(told.get("gen_ai.output.messages")) or told.get("gen_ai.output.text"),
        _loaded(told.get("gen_ai.tool.definitions")),
    )
    if prompt is None and ask is None:
        raise LeftOut("neither lengths nor text")
    began_s = _at(item, "startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
    if began_s is None:
        raise BadRow("start_time is missing")
    ended_s = _at(item, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
    yield Row(
        time_s=began_s,
        prompt_tokens=prompt,
        output_tokens=tokens_or_none(told, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        ask=ask,
        session=name_of(told, "gen_ai.conversation.id", "session.id"),
        user=name_of(told, "user.id", "enduser.id"),
        route=name_of(told, "gen_ai.operation.name") or "",
        model=name_of(told, "gen_ai.request.model") or "",
        took_s=ended_s - began_s if ended_s is not None and ended_s >= began_s else None,
        cached_tokens=tokens_or_none(told, "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens"),
    )


def attributes(told: object) -> dict[str, Any]:
    """Attributes as a flat object, from that or from OTLP's list of keys and typed values."""
    if isinstance(told, Mapping):
        return dict(told)
    if not isinstance(told, list):
        raise BadRow("attributes is no object")
    return {str(entry.get("key")): _value(entry.get("value")) for entry in told if isinstance(entry, Mapping)}


def _value(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    if "arrayValue" in value:
        return [_value(part) for part in value["arrayValue"].get("values", ())]
    if "kvlistValue" in value:
        return {part["key"]: _value(part.get("value")) for part in value["kvlistValue"].get("values", ())}
    return next(iter(value.values()), None)


def _at(item: Item, *names: str) -> float | None:
    """A time as ISO text, or as nanoseconds since the epoch, which OTLP writes as text."""
    value = present(item, *names)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and value > 10**14:
        return value / 1e9
    return moment({names[0]: value}, names[0])


def _loaded(value: object) -> Any:
    if isinstance(value, str):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    return value


def _messages(told: Mapping[str, Any]) -> list[Any] | None:
    """System instructions and messages, in OpenAI's form; None when the span holds no contents."""
    messages = _loaded(told.get("gen_ai.input.messages"))
    if not isinstance(messages, list) or not messages:
        return None
    system = _loaded(told.get("gen_ai.system_instructions"))
    opening = [{"role": "system", "content": system}] if system else []
    return opening + [_message(message) for message in messages if isinstance(message, Mapping)]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if "parts" not in message:
        return dict(message)
    texts = [part for part in message["parts"] if isinstance(part, Mapping) and part.get("type") == "text"]
    others = [part for part in message["parts"] if part not in texts]
    content: Any = "".join(str(part.get("content", "")) for part in texts)
    return {"role": message.get("role"), "content": [content, *others] if others else content}


def _said(output: object) -> str | None:
    messages = _loaded(output)
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], Mapping):
        return None
    content = _message(messages[0]).get("content")
    return content if isinstance(content, str) else None


def _flat(item: Item) -> bool:
    told = item.get("attributes")
    return isinstance(told, Mapping) and any(name.startswith("gen_ai.") for name in told)


FORMATS = (
    Format("otlp", lambda item: "resourceSpans" in item, stateless(_resources)),
    Format("otel", _flat, stateless(_span)),
)
