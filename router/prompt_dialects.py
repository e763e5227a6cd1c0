"""Anthropic Messages and OpenAI Responses bodies as the chat body vLLM makes of them.

Plain text was compared with recordings of vLLM 0.32 and is exact; tools, tool results, thinking and whatever else is
converted as that version's source describes, but nobody has recorded it: those conversions carry a doubt, and a prompt
with a doubt is approximate. The one rule: what can't be converted at all raises `NotText`.
"""

from collections.abc import Mapping
from typing import Any

from router.chat import BILLING_HEADER, Message, NotText, part_text

MESSAGES_ROUTES = frozenset(["/v1/messages", "/v1/messages/count_tokens"])
RESPONSES = "/v1/responses"

_UNRECORDED = "converted to chat in a way that was not compared with the engine"
_PASSED_ON = ("chat_template_kwargs", "kv_transfer_params")


def as_chat(route: str, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The body in the form of a chat-completions request, and a doubt about the conversion (empty when none)."""
    if route in MESSAGES_ROUTES:
        return _from_messages(body)
    if route == RESPONSES:
        return _from_responses(body)
    return body, ""


def _from_messages(body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    given = body.get("messages")
    if not isinstance(given, list):
        raise NotText("there are no messages")
    plain = isinstance(body.get("system"), str | None) and not body.get("tools") and not body.get("output_config")
    messages: list[Message] = []
    systems = _system_texts(body.get("system"))
    for message in given:
        if not isinstance(message, Mapping):
            raise NotText("a message is not an object")
        plain = plain and isinstance(message.get("content"), str) and message.get("role") != "system"
        if message.get("role") == "system":
            systems += _system_texts(message.get("content"))
        else:
            messages += _anthropic(message)
    if systems:
        messages.insert(0, {"role": "system", "content": "".join(systems)})
    made: dict[str, Any] = {"messages": messages, **{name: body[name] for name in _PASSED_ON if name in body}}
    if isinstance(body.get("tools"), list):
        made["tools"] = [_anthropic_tool(tool) for tool in body["tools"] if isinstance(tool, Mapping)]
    output = body.get("output_config")
    if isinstance(output, Mapping) and isinstance(output.get("effort"), str):
        made["reasoning_effort"] = output["effort"]
    return made, "" if plain else _UNRECORDED


def _system_texts(system: Any) -> list[str]:
    if isinstance(system, str):
        return [system] if system else []
    if not isinstance(system, list):
        return []
    texts = [part_text(part) or "" for part in system]
    return [text for text in texts if text and not text.startswith(BILLING_HEADER)]


def _anthropic_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _anthropic(message: Mapping[str, Any]) -> list[Message]:
    """One message as one or more: results of tools become messages of their own, before the rest."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    parts: list[Any] = []
    calls: list[Any] = []
    thoughts: list[str] = []
    results: list[Message] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "tool_use":
            function = {"name": part.get("name") or "", "arguments": part.get("input") or {}}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            results += _tool_result(part)
        elif kind == "thinking" and isinstance(part.get("thinking"), str):
            thoughts.append(part["thinking"])
        elif kind not in ("redacted_thinking", "tool_reference") and not (kind == "text" and not part.get("text")):
            parts.append(part)
    made: Message = {"role": role}
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if parts:
        made["content"] = part_text(parts[0]) if len(parts) == 1 and part_text(parts[0]) is not None else parts
    return results if role == "user" and not parts else [*results, made]


def _tool_result(part: Mapping[str, Any]) -> list[Message]:
    content = part.get("content")
    images: list[Any] = []
    if isinstance(content, list):
        images = [item for item in content if isinstance(item, Mapping) and item.get("type") == "image"]
        content = "\n".join(text for text in map(part_text, content) if text is not None)
    made: Message = {"role": "tool", "tool_call_id": part.get("tool_use_id") or "", "content": content or ""}
    return [made, {"role": "user", "content": images}] if images else [made]


def _from_responses(body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if body.get("previous_response_id"):
        raise NotText("the request continues an earlier response that only the engine holds")
    messages: list[Message] = []
    if isinstance(body.get("instructions"), str) and body["instructions"]:
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    plain = isinstance(given, str) and not body.get("tools") and not body.get("reasoning")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        messages += map(_response_item, given)
    else:
        raise NotText("there is no input")
    made: dict[str, Any] = {"messages": messages, **{name: body[name] for name in _PASSED_ON if name in body}}
    if isinstance(body.get("tools"), list):
        tools = [tool for tool in body["tools"] if isinstance(tool, Mapping) and tool.get("type") == "function"]
        made["tools"] = [{"type": "function", "function": tool} for tool in tools]
    return made, "" if plain else _UNRECORDED


def _response_item(item: Any) -> Message:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind == "message":
        return {"role": item.get("role"), "content": item.get("content")}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {
            "role": "assistant",
            "tool_calls": [{"id": item.get("call_id"), "type": "function", "function": function}],
        }
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    raise NotText("the input holds items other than messages and function calls")
