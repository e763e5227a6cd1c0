"""How `/v1/responses` looks on the wire: named and numbered server-sent events, fields as vLLM 0.32 writes them.

The one rule: an answer is one item, a message or, with a forced tool, a call of it; its cached tokens stand only in the
usage of the whole response, which a stream shows in `response.completed`.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from sim.emulator_json import around, compact, named_event, unescaped
from sim.emulator_requests import Ask
from sim.emulator_sampling import End
from sim.emulator_wire import MARK, Choice, Usage

Events = list[tuple[str, dict[str, Any]]]


class _Item(Protocol):
    """What the answer is made of. `opened` and `closed` are the events around its deltas."""

    delta_kind: str
    delta: dict[str, Any]

    def shown(self, escaped: bytes) -> bytes: ...
    def whole(self, text: str) -> dict[str, Any]: ...
    def opened(self) -> Events: ...
    def closed(self, text: str) -> Events: ...


class Responses:
    """`/v1/responses`."""

    def __init__(self, answer_id: str, created: int, ask: Ask) -> None:
        self._answer_id = answer_id
        self._created = created
        self._ask = ask
        name = answer_id.rpartition("_")[2]
        self._item: _Item = _Message(f"msg_{name}") if ask.tool is None else _Call(name, ask.tool)
        self._number = 0
        self._parts: list[bytes] = []
        self._end = End("stop")
        self._before, after = around(self._item.delta, MARK)
        self._after = after[:-1]

    def head(self) -> bytes:
        begun = {"response": self._response("in_progress", None, [], None)}
        return self._events([("response.created", begun), ("response.in_progress", begun), *self._item.opened()])

    def piece(self, choice: int, token: int, escaped: bytes, end: End | None) -> bytes:  # noqa: ARG002 -- one choice
        self._parts.append(escaped)
        if end is not None:
            self._end = end
        kind = self._item.delta_kind.encode()
        last = b',"sequence_number":%d,"type":"%b"}\n\n' % (self._next(), kind)
        return b"event: " + kind + b"\ndata: " + self._before + self._item.shown(escaped) + self._after + last

    def tail(self, usage: Usage) -> bytes:
        text = unescaped(b"".join(self._parts))
        done = {"item": self._item.whole(text), "output_index": 0}
        ended = {"response": self._ended(text, self._end, usage)}
        closed = self._item.closed(text)
        return self._events([*closed, ("response.output_item.done", done), ("response.completed", ended)])

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return self._ended(choices[0].text, choices[0].end, usage)

    def _ended(self, text: str, end: End, usage: Usage) -> dict[str, Any]:
        cut = end.why == "length" and self._ask.tool is None
        read = {"cached_tokens": usage.cached, "cache_write_tokens": usage.created}
        written = {"reasoning_tokens": 0, "tool_output_tokens": 0}
        counts = {
            "input_tokens": usage.prompt,
            "input_tokens_details": read | {"input_tokens_per_turn": [], "cached_tokens_per_turn": []},
            "output_tokens": usage.output,
            "output_tokens_details": written | {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
            "total_tokens": usage.prompt + usage.output,
        }
        reason = {"reason": "max_output_tokens"} if cut else None
        return self._response("incomplete" if cut else "completed", reason, [self._item.whole(text)], counts)

    def _response(
        self, status: str, reason: dict[str, str] | None, output: list[Any], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "id": self._answer_id,
            "created_at": self._created,
            "incomplete_details": reason,
            "instructions": None,
            "metadata": None,
            "model": self._ask.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none" if self._ask.tool is None else "required",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._ask.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number

    def _events(self, events: Events) -> bytes:
        return b"".join([self._event(kind, value) for kind, value in events])

    def _event(self, kind: str, value: dict[str, Any]) -> bytes:
        numbered = value | {"sequence_number": self._next(), "type": kind}
        return named_event(dict(sorted(numbered.items())))


class _Message:
    """Plain text."""

    delta_kind = "response.output_text.delta"

    def __init__(self, item_id: str) -> None:
        self._id = item_id
        self._where = {"content_index": 0, "item_id": item_id, "output_index": 0}
        self.delta = {"content_index": 0, "delta": MARK, "item_id": item_id, "logprobs": [], "output_index": 0}

    def shown(self, escaped: bytes) -> bytes:
        return escaped

    def whole(self, text: str) -> dict[str, Any]:
        return self._message("completed", [self._part(text, None)])

    def opened(self) -> Events:
        return [
            ("response.output_item.added", {"item": self._message("in_progress", []), "output_index": 0}),
            ("response.content_part.added", self._where | {"part": self._part("", [])}),
        ]

    def closed(self, text: str) -> Events:
        where = {"content_index": 0, "item_id": self._id, "logprobs": [], "output_index": 0}
        return [
            ("response.output_text.done", where | {"text": text}),
            ("response.content_part.done", self._where | {"part": self._part(text, None)}),
        ]

    def _message(self, status: str, content: list[Any]) -> dict[str, Any]:
        rest = {"role": "assistant", "status": status, "type": "message", "phase": None}
        return {"id": self._id, "content": content} | rest

    @staticmethod
    def _part(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


class _Call:
    """A call of one tool; the text is its argument `text`."""

    delta_kind = "response.function_call_arguments.delta"

    def __init__(self, name: str, tool: str) -> None:
        self._id = f"fc_{name}"
        self._call_id = f"call_{name}"
        self._tool = tool
        self.delta = {"delta": MARK, "item_id": self._id, "output_index": 0}

    def shown(self, escaped: bytes) -> bytes:
        return compact(escaped.decode())[1:-1]  # a JSON string within a JSON string

    def whole(self, text: str) -> dict[str, Any]:
        return self._call("completed", self._arguments(text))

    def opened(self) -> Events:
        return [
            ("response.output_item.added", {"item": self._call("in_progress", ""), "output_index": 0}),
            (self.delta_kind, self.delta | {"delta": '{"text":"'}),
        ]

    def closed(self, text: str) -> Events:
        done = {"arguments": self._arguments(text), "item_id": self._id, "name": self._tool, "output_index": 0}
        return [
            (self.delta_kind, self.delta | {"delta": '"}'}),
            ("response.function_call_arguments.done", done),
        ]

    def _call(self, status: str, arguments: str) -> dict[str, Any]:
        names = {"call_id": self._call_id, "name": self._tool, "type": "function_call", "id": self._id}
        return {"arguments": arguments} | names | {"status": status}

    @staticmethod
    def _arguments(text: str) -> str:
        return json.dumps({"text": text}, separators=(",", ":"))
