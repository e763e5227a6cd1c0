"""How `/v1/messages` looks on the wire: named server-sent events, fields as vLLM 0.32 writes them.

The one rule: this route has one choice, and its cached tokens stand only where vLLM puts them: in `message_delta`.
"""

from collections.abc import Sequence
from typing import Any

from sim.emulator_json import around, compact, named_event
from sim.emulator_requests import Ask
from sim.emulator_sampling import End
from sim.emulator_wire import MARK, Choice, Usage

_STOP_REASON = {"length": "max_tokens", "stop": "end_turn", "abort": "end_turn"}


class Messages:
    """`/v1/messages`. With a forced tool the text becomes the input of one `tool_use` block."""

    def __init__(self, answer_id: str, ask: Ask) -> None:
        self._answer_id = answer_id
        self._ask = ask
        self._end = End("stop")
        kind, field = ("text_delta", "text") if ask.tool is None else ("input_json_delta", "partial_json")
        delta = {"type": "content_block_delta", "delta": {"type": kind, field: MARK}, "index": 0}
        self._text = around(delta, MARK)

    def head(self) -> bytes:
        message: dict[str, Any] = {"id": self._answer_id, "type": "message", "role": "assistant", "content": []}
        message |= {"model": self._ask.model, "stop_reason": None, "stop_sequence": None}
        message["usage"] = {"input_tokens": self._ask.prompt_tokens, "output_tokens": 0}
        block: dict[str, Any] = {"type": "text", "text": ""}
        if self._ask.tool is not None:
            block = {"type": "tool_use", "id": self._call_id(), "name": self._ask.tool, "input": {}}
        return (
            named_event({"type": "message_start", "message": message})
            + named_event({"type": "content_block_start", "content_block": block, "index": 0})
            + (b"" if self._ask.tool is None else self._delta(b'{\\"text\\":\\"'))
        )

    def piece(self, choice: int, token: int, escaped: bytes, end: End | None) -> bytes:  # noqa: ARG002 -- one choice
        if self._ask.tool is None:
            out = self._delta(escaped)
        else:  # a JSON string within a JSON string
            out = self._delta(compact(escaped.decode())[1:-1] + (b'\\"}' if end else b""))
        if end is not None:
            self._end = end
        return out

    def tail(self, usage: Usage) -> bytes:
        delta = {"stop_reason": self._stop_reason(self._end), "stop_sequence": None}
        return (
            named_event({"type": "content_block_stop", "index": 0})
            + named_event({"type": "message_delta", "delta": delta, "usage": _usage(usage)})
            + named_event({"type": "message_stop"})
        )

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        text = choices[0].text
        block: dict[str, Any] = {"type": "text", "text": text}
        if self._ask.tool is not None:
            block = {"type": "tool_use", "id": self._call_id(), "name": self._ask.tool, "input": {"text": text}}
        return {
            "id": self._answer_id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "model": self._ask.model,
            "stop_reason": self._stop_reason(choices[0].end),
            "usage": _usage(usage),
        }

    def _delta(self, escaped: bytes) -> bytes:
        before, after = self._text
        return b"event: content_block_delta\ndata: " + before + escaped + after + b"\n\n"

    def _stop_reason(self, end: End) -> str:
        return _STOP_REASON[end.why] if self._ask.tool is None else "tool_use"

    def _call_id(self) -> str:
        return f"toolu_{self._answer_id.rpartition('-')[2]}"


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt - usage.cached - usage.created,
        "output_tokens": usage.output,
        "cache_creation_input_tokens": usage.created,
        "cache_read_input_tokens": usage.cached,
    }
