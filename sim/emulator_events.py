"""How `/v1/messages` and `/v1/responses` look on the wire: named server-sent events, fields as vLLM 0.32 writes them.

The one rule: these routes have one choice. Cached tokens stand only where vLLM puts them: in `message_delta` and in
`response.completed`.
"""

import json
from collections.abc import Sequence
from typing import Any

from sim.emulator_wire import Choice, Usage, around, compact

_MARK = "\ue000"
_STOP_REASON = {"length": "max_tokens", "stop": "end_turn"}


class Messages:
    """`/v1/messages`. With a forced tool the text becomes the input of one `tool_use` block."""

    def __init__(self, answer_id: str, model: str, *, prompt_tokens: int, tool: str | None) -> None:
        self._answer_id = answer_id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._tool = tool
        self._finish = "stop"
        kind, field = ("text_delta", "text") if tool is None else ("input_json_delta", "partial_json")
        delta = {"type": "content_block_delta", "delta": {"type": kind, field: _MARK}, "index": 0}
        self._text = around(delta, _MARK)

    def head(self) -> bytes:
        message: dict[str, Any] = {"id": self._answer_id, "type": "message", "role": "assistant", "content": []}
        message |= {"model": self._model, "stop_reason": None, "stop_sequence": None}
        message["usage"] = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        block: dict[str, Any] = {"type": "text", "text": ""}
        if self._tool is not None:
            block = {"type": "tool_use", "id": self._call_id(), "name": self._tool, "input": {}}
        return (
            _event({"type": "message_start", "message": message})
            + _event({"type": "content_block_start", "content_block": block, "index": 0})
            + (b"" if self._tool is None else self._delta(b'{\\"text\\":\\"'))
        )

    def piece(self, choice: int, escaped: bytes, finish: str | None) -> bytes:  # noqa: ARG002 -- one choice only
        if self._tool is None:
            out = self._delta(escaped)
        else:  # a JSON string within a JSON string
            out = self._delta(compact(escaped.decode())[1:-1] + (b'\\"}' if finish else b""))
        if finish is not None:
            self._finish = finish
        return out

    def tail(self, usage: Usage) -> bytes:
        delta = {"stop_reason": self._stop_reason(self._finish), "stop_sequence": None}
        return (
            _event({"type": "content_block_stop", "index": 0})
            + _event({"type": "message_delta", "delta": delta, "usage": self._usage(usage)})
            + _event({"type": "message_stop"})
        )

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        text = choices[0].text
        block: dict[str, Any] = {"type": "text", "text": text}
        if self._tool is not None:
            block = {"type": "tool_use", "id": self._call_id(), "name": self._tool, "input": {"text": text}}
        return {
            "id": self._answer_id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "model": self._model,
            "stop_reason": self._stop_reason(choices[0].finish),
            "stop_sequence": None,
            "usage": self._usage(usage),
        }

    def _delta(self, escaped: bytes) -> bytes:
        before, after = self._text
        return b"event: content_block_delta\ndata: " + before + escaped + after + b"\n\n"

    def _stop_reason(self, finish: str) -> str:
        return _STOP_REASON[finish] if self._tool is None else "tool_use"

    def _call_id(self) -> str:
        return f"toolu_{self._answer_id.rpartition('-')[2]}"

    @staticmethod
    def _usage(usage: Usage) -> dict[str, int]:
        return {
            "input_tokens": usage.prompt - usage.cached - usage.created,
            "output_tokens": usage.output,
            "cache_creation_input_tokens": usage.created,
            "cache_read_input_tokens": usage.cached,
        }


class Responses:
    """`/v1/responses`."""

    def __init__(self, answer_id: str, created: int, model: str, *, max_tokens: int | None) -> None:
        self._answer_id = answer_id
        self._item_id = f"msg_{answer_id.rpartition('_')[2]}"
        self._created = created
        self._model = model
        self._max_tokens = max_tokens
        self._number = 0
        self._parts: list[bytes] = []
        self._finish = "stop"
        delta = {"content_index": 0, "delta": _MARK, "item_id": self._item_id, "logprobs": [], "output_index": 0}
        self._text = around(delta, _MARK)

    def head(self) -> bytes:
        begun = self._response("in_progress", None, [], None)
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return (
            self._event("response.created", {"response": begun})
            + self._event("response.in_progress", {"response": begun})
            + self._event("response.output_item.added", {"item": self._item("in_progress", []), "output_index": 0})
            + self._event(
                "response.content_part.added",
                {"content_index": 0, "item_id": self._item_id, "output_index": 0, "part": part},
            )
        )

    def piece(self, choice: int, escaped: bytes, finish: str | None) -> bytes:  # noqa: ARG002 -- one choice only
        self._parts.append(escaped)
        if finish is not None:
            self._finish = finish
        before, after = self._text
        number = self._next()
        last = b',"sequence_number":%d,"type":"response.output_text.delta"}\n\n' % number
        return b"event: response.output_text.delta\ndata: " + before + escaped + after[:-1] + last

    def tail(self, usage: Usage) -> bytes:
        text = b"".join(self._parts)
        done = around({"text": _MARK}, _MARK)
        where = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        plain = _unescaped(done[0] + text + done[1])
        item = self._item("completed", [self._part(plain)])
        return (
            self._event("response.output_text.done", where | {"logprobs": [], "text": plain})
            + self._event("response.content_part.done", where | {"part": self._part(plain)})
            + self._event("response.output_item.done", {"item": item, "output_index": 0})
            + self._event("response.completed", {"response": self._ended(plain, self._finish, usage)})
        )

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return self._ended(choices[0].text, choices[0].finish, usage)

    def _ended(self, text: str, finish: str, usage: Usage) -> dict[str, Any]:
        cut = finish == "length"
        item = self._item("completed", [self._part(text)])
        counts = {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.created},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": usage.prompt + usage.output,
        }
        reason = {"reason": "max_output_tokens"} if cut else None
        return self._response("incomplete" if cut else "completed", reason, [item], counts)

    def _response(
        self, status: str, reason: dict[str, str] | None, output: list[Any], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "id": self._answer_id,
            "created_at": self._created,
            "incomplete_details": reason,
            "instructions": None,
            "metadata": None,
            "model": self._model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._max_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
        }

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        kind = {"role": "assistant", "status": status, "type": "message"}
        return {"id": self._item_id, "content": content} | kind

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number

    def _event(self, kind: str, value: dict[str, Any]) -> bytes:
        return _event(value | {"sequence_number": self._next(), "type": kind})


def _event(value: dict[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + compact(value) + b"\n\n"


def _unescaped(body: bytes) -> str:
    text: str = json.loads(body)["text"]
    return text
