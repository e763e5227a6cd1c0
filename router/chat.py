"""What vLLM does to a chat request before the template sees it, so that the rendered text is the engine's.

Followed from recordings of vLLM 0.32: text parts joined by newlines unless the template takes parts itself, tool-call
arguments parsed, `developer` folded into the system message unless the template knows that role, `reasoning` also given
as `reasoning_content`, an `x-anthropic-billing-header` first line of a system text dropped.
The one rule: where a conversation holds more than text, a mark shows how far its text can be relied on.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

MARK = "\ue01f\uf4a7here the known text ends\uf4a7\ue01f"
"""Put where the text that counts ends, to be found again after rendering; private-use characters frame it."""

BILLING_HEADER = "x-anthropic-billing-header"
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")
_LONG_NUMBER = re.compile(r"\d{19}")

Message = dict[str, Any]


class NotText(Exception):  # noqa: N818 -- named after what it says
    """The conversation can't be rendered to the engine's text; the message says why."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat request as the template takes it."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] | None
    variables: Mapping[str, Any]
    add_generation_prompt: bool
    continues: bool
    """Whether the last message goes on: its text ends with `MARK` and a space, and the prompt ends before them."""
    add_special_tokens: bool
    beyond_text: str
    """What is more than text (an image, say), in words; `MARK` stands before it. Empty when all of it is text."""


def conversation(body: Mapping[str, Any], *, takes_parts: bool, knows_developer: bool) -> Conversation:
    """A chat-completions body, rewritten. Raises `NotText` when it has no messages the template could take."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise NotText("there are no messages")
    messages: list[Message] = []
    beyond = ""
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise NotText("a message has no role")
        rewritten, found = _message(message, takes_parts=takes_parts, marked=bool(beyond))
        messages.append(rewritten)
        beyond = beyond or found
    if not knows_developer:
        messages = _without_developer(messages)
    continues = body.get("continue_final_message") is True and not beyond
    if continues:
        messages[-1] = _marked_end(messages[-1])
    return Conversation(
        messages=tuple(messages),
        tools=_tools(body),
        variables=_variables(body),
        add_generation_prompt=body.get("add_generation_prompt") is not False and not continues,
        continues=continues,
        add_special_tokens=body.get("add_special_tokens") is True,
        beyond_text=beyond,
    )


def _message(message: Mapping[str, Any], *, takes_parts: bool, marked: bool) -> tuple[Message, str]:
    role = message["role"]
    content, beyond = _content(message.get("content"), takes_parts=takes_parts, marked=marked)
    if role == "system" and isinstance(content, str):
        content = without_billing_header(content)
    rewritten: Message = {"role": role, "content": content}
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
    elif role == "developer":
        rewritten["tools"] = message.get("tools")
    return rewritten, beyond


def _content(content: Any, *, takes_parts: bool, marked: bool) -> tuple[Any, str]:
    """The content as the template gets it, and what in it is more than text."""
    if content is None:
        return ("" if not takes_parts else []), ""
    if isinstance(content, str):
        return ([{"type": "text", "text": content}] if takes_parts else content), ""
    if not isinstance(content, list):
        raise NotText("a message's content is neither text nor a list of parts")
    parts: list[Any] = []
    beyond = ""
    for part in content:
        text = part if isinstance(part, str) else part_text(part)
        if text is not None:
            parts.append(part if isinstance(part, str) or not takes_parts else {"type": "text", "text": text})
        elif not beyond:
            beyond = f"a part of type {_kind(part)} is not text"
            if not marked:
                parts.append({"type": "text", "text": MARK})
    if takes_parts:
        return parts, beyond
    if beyond and not marked:  # the engine puts the placeholders of images before the message's text
        return MARK, beyond
    texts = [part if isinstance(part, str) else part_text(part) for part in parts]
    return "\n".join(text for text in texts if text), beyond


def part_text(part: Any) -> str | None:
    """The text of a content part; None when it is something else."""
    if not isinstance(part, dict) or part.get("type", "text") not in _TEXT_PARTS:
        return None
    text = part.get("text", part.get("refusal", part.get("thinking")))
    return text if isinstance(text, str) else None


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) and kind.isidentifier() and len(kind) < 32 else "unknown"


def _marked_end(message: Message) -> Message:
    """Like `transformers`: a space after the mark tells, after rendering, whether the template trims contents."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{content}{MARK} "}
    texts = [place for place, part in enumerate(content) if isinstance(part, Mapping) and "text" in part]
    if not texts:
        raise NotText("the message to continue holds no text")
    parts = list(content)
    parts[texts[-1]] = {**parts[texts[-1]], "text": f"{parts[texts[-1]]['text']}{MARK} "}
    return {**message, "content": parts}


def without_mark(text: str, *, continues: bool) -> tuple[str, str]:
    """The rendered text before the mark, and what stands behind it. Raises `NotText` when the template dropped it."""
    place = text.rfind(MARK) if continues else text.find(MARK)
    if place < 0:
        raise NotText("the template leaves the last known text out")
    before, after = text[:place], text[place + len(MARK) :]
    return (before.rstrip() if continues and not after.startswith(" ") else before), after


def without_billing_header(text: str) -> str:
    """A system text without the line that differs in every request of one client."""
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _tool_call(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = call["function"]
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(given: Any) -> Any:
    if isinstance(given, dict | list):
        return given
    if not isinstance(given, str) or not given:
        return {}
    try:
        # orjson rounds integers beyond 64 bits, which the engine does not
        parsed = json.loads(given) if _LONG_NUMBER.search(given) else orjson.loads(given)
    except orjson.JSONDecodeError:
        parsed = _lenient(given)
    return parsed if isinstance(parsed, dict) else {}


def _lenient(text: str) -> Any:
    """NaN and lone surrogates: the standard library, which the engine uses, reads them."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _without_developer(messages: Sequence[Message]) -> list[Message]:
    """Developer messages are system messages to a template that does not know them, and those are merged into one."""
    if not any(message["role"] == "developer" for message in messages):
        return list(messages)
    instructions = [message for message in messages if message["role"] in ("developer", "system")]
    text = "\n\n".join(_text_of(message["content"]) for message in instructions)
    parts = isinstance(instructions[0]["content"], list)
    merged: Message = {"role": "system", "content": [{"type": "text", "text": text}] if parts else text}
    return [merged, *(message for message in messages if message["role"] not in ("developer", "system"))]


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""


def _tools(body: Mapping[str, Any]) -> tuple[Any, ...] | None:
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        return None
    return tuple(_tool(tool) for tool in tools)


def _tool(tool: Any) -> Any:
    """The engine reads tools into its own schema and writes them in its own order; the JSON schema stays as sent."""
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
        return tool
    function = tool["function"]
    ordered = {name: function.get(name) for name in ("name", "description", "parameters")}
    return {"type": tool.get("type", "function"), "function": {**ordered, **_others(function, ordered)}} | _others(
        tool, ("type", "function")
    )


def _others(mapping: Mapping[str, Any], named: Any) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in named}


def _variables(body: Mapping[str, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    effort = body.get("reasoning_effort")
    if isinstance(effort, str):
        variables["enable_thinking"] = effort != "none"
    given = body.get("chat_template_kwargs")
    if isinstance(given, Mapping):
        variables.update(given)
    if isinstance(effort, str):
        variables["reasoning_effort"] = effort
    if isinstance(body.get("documents"), list):
        variables["documents"] = body["documents"]
    return variables
