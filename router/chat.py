"""What vLLM does to a chat request before the template sees it, so that the rendered text is the engine's.

Followed from recordings of vLLM 0.32: text parts joined by newlines unless the template takes parts itself, tool-call
arguments parsed, `developer` folded into the system message unless the template knows that role, `reasoning` also given
as `reasoning_content`, an `x-anthropic-billing-header` first line of a system text dropped.
The one rule: a conversation that holds more than text is rendered up to there and says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_BILLING_HEADER = "x-anthropic-billing-header"
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")

Message = dict[str, Any]


class NotText(Exception):
    """The conversation can't be rendered to the engine's text; the message says why."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat request as the template takes it."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] | None
    variables: Mapping[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    cut_short: str
    """Why rendering stopped before the end (an image, say); empty when all of it is text."""


def conversation(body: Mapping[str, Any], *, takes_parts: bool, knows_developer: bool) -> Conversation:
    """A chat-completions body, rewritten. Raises `NotText` when it has no messages the template could take."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise NotText("there are no messages")
    messages: list[Message] = []
    cut_short = ""
    for message in given:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise NotText("a message has no role")
        rewritten, cut_short = _message(message, takes_parts=takes_parts)
        messages.append(rewritten)
        if cut_short:
            break
    if not knows_developer:
        messages = _without_developer(messages)
    return Conversation(
        messages=tuple(messages),
        tools=_tools(body),
        variables=_variables(body),
        add_generation_prompt=body.get("add_generation_prompt", True) is not False and not cut_short,
        continue_final_message=body.get("continue_final_message") is True and not cut_short,
        add_special_tokens=body.get("add_special_tokens") is True,
        cut_short=cut_short,
    )


def _message(message: Mapping[str, Any], *, takes_parts: bool) -> tuple[Message, str]:
    role = message["role"]
    rewritten: Message = {"role": role}
    content, cut_short = _content(message.get("content"), takes_parts=takes_parts)
    if role == "system" and isinstance(content, str):
        content = _without_billing_header(content)
    rewritten["content"] = content
    if isinstance(message.get("name"), str):
        rewritten["name"] = message["name"]
    if role == "assistant":
        if isinstance(message.get("tool_calls"), list) and message["tool_calls"]:
            rewritten["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        if reasoning is not None:
            rewritten["reasoning"] = rewritten["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        rewritten["tool_call_id"] = message["tool_call_id"]
    return rewritten, cut_short


def _content(content: Any, *, takes_parts: bool) -> tuple[Any, str]:
    if content is None:
        return ("" if not takes_parts else []), ""
    if isinstance(content, str):
        return ([{"type": "text", "text": content}] if takes_parts else content), ""
    if not isinstance(content, list):
        raise NotText("a message's content is neither text nor a list of parts")
    texts: list[str] = []
    cut_short = ""
    for part in content:
        text = part if isinstance(part, str) else _part_text(part)
        if text is None:
            cut_short = "a part is not text"
            break
        texts.append(text)
    if takes_parts:
        return [{"type": "text", "text": text} for text in texts], cut_short
    return "\n".join(text for text in texts if text), cut_short


def _part_text(part: Any) -> str | None:
    if not isinstance(part, Mapping) or part.get("type", "text") not in _TEXT_PARTS:
        return None
    text = part.get("text", part.get("refusal", part.get("thinking")))
    return text if isinstance(text, str) else None


def _without_billing_header(text: str) -> str:
    if not text.startswith(_BILLING_HEADER):
        return text
    return text.partition("\n")[2]


def _tool_call(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = orjson.loads(arguments) if arguments else {}
        except orjson.JSONDecodeError:
            parsed = {}
        arguments = parsed if isinstance(parsed, dict) else {}
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _without_developer(messages: Sequence[Message]) -> list[Message]:
    """Developer messages are system messages to a template that does not know them, and those are merged into one."""
    if not any(message["role"] == "developer" for message in messages):
        return list(messages)
    instructions = [message for message in messages if message["role"] in ("developer", "system")]
    texts = [_text_of(message["content"]) for message in instructions]
    merged: Message = {"role": "system", "content": "\n\n".join(texts)}
    if isinstance(instructions[0]["content"], list):
        merged["content"] = [{"type": "text", "text": merged["content"]}]
    return [merged, *(message for message in messages if message["role"] not in ("developer", "system"))]


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""


def _tools(body: Mapping[str, Any]) -> tuple[Any, ...] | None:
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        return None
    return tuple(_tool(tool) for tool in tools)


def _tool(tool: Any) -> Any:
    """The engine reads tools into its own schema and writes them out in its own order; the JSON schema stays as sent."""
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
        return tool
    function = tool["function"]
    ordered = {name: function.get(name) for name in ("name", "description", "parameters")}
    rest = {name: value for name, value in function.items() if name not in ordered}
    return {"type": tool.get("type", "function"), "function": {**ordered, **rest}}


def _variables(body: Mapping[str, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    if isinstance(body.get("documents"), list):
        variables["documents"] = body["documents"]
    effort = body.get("reasoning_effort")
    if isinstance(effort, str):
        variables["reasoning_effort"] = effort
        variables["enable_thinking"] = effort != "none"
    given = body.get("chat_template_kwargs")
    if isinstance(given, Mapping):
        variables.update(given)
    return variables


def from_messages(body: Mapping[str, Any]) -> dict[str, Any]:
    """An Anthropic Messages body as the chat body vLLM makes of it (text, tool use and tool results)."""
    messages: list[Message] = []
    system = body.get("system")
    if isinstance(system, str):
        messages.append({"role": "system", "content": _without_billing_header(system)})
    elif isinstance(system, list):
        texts = [_part_text(part) or "" for part in system]
        text = "".join(text for text in texts if not text.startswith(_BILLING_HEADER))
        messages.append({"role": "system", "content": text})
    for message in body.get("messages") or ():
        messages += _anthropic(message)
    tools = body.get("tools")
    made: dict[str, Any] = {"messages": messages}
    if isinstance(tools, list) and tools:
        made["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.get("name"),
                    "description": tool.get("description"),
                    "parameters": tool.get("input_schema"),
                },
            }
            for tool in tools
            if isinstance(tool, Mapping)
        ]
    return made


def _anthropic(message: Any) -> list[Message]:
    if not isinstance(message, Mapping):
        raise NotText("a message is not an object")
    content = message.get("content")
    if not isinstance(content, list):
        return [dict(message)]
    parts: list[Any] = []
    calls: list[Any] = []
    results: list[Message] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "tool_use":
            function = {"name": part.get("name"), "arguments": part.get("input") or {}}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            inner = part.get("content")
            results.append({"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": inner or ""})
        else:
            parts.append(part)
    made: Message = {"role": message.get("role"), "content": parts}
    if calls:
        made["tool_calls"] = calls
    return [*results, made] if parts or calls else results


def from_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """A Responses body as a chat body. Raises `NotText` when it continues a response only the engine knows."""
    if body.get("previous_response_id"):
        raise NotText("the request continues an earlier response that only the engine holds")
    messages: list[Message] = []
    if isinstance(body.get("instructions"), str):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            if not isinstance(item, Mapping) or item.get("type", "message") != "message":
                raise NotText("the input holds items other than messages")
            messages.append({"role": item.get("role"), "content": item.get("content")})
    return {"messages": messages}
