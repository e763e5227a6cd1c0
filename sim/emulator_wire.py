"""How chat and text completions look on the wire, plain and streamed: the field names and order of vLLM 0.32.

The one rule: everything of a stream that does not change from token to token is formatted once, so a token costs a few
bytes joined. The event-shaped dialects, messages and responses, are in `emulator_events`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

FINGERPRINT = "vllm-0.32.0-simulated"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, all prompts and choices together. `created` counts prompt tokens newly cached."""

    prompt: int
    cached: int
    created: int
    output: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished answer; `finish` is "length" or "stop"."""

    text: str
    finish: str


class Dialect(Protocol):
    """One request's way of answering. `escaped` is text as the inside of a JSON string."""

    def head(self) -> bytes:
        """What a stream begins with, before any token."""

    def piece(self, choice: int, escaped: bytes, finish: str | None) -> bytes:
        """Some new text of one choice, the last when `finish` is given."""

    def tail(self, usage: Usage) -> bytes:
        """What a stream ends with."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer to a request that is not streamed."""


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def around(value: object, mark: str) -> tuple[bytes, bytes]:
    """A formatted value split where the string `mark` stands in it, quotes kept."""
    before, _, after = compact(value).partition(mark.encode())
    return before, after


_MARK = "\ue000"


class Chat:
    """`/v1/chat/completions`. With a forced tool the text becomes the argument of one call of it."""

    def __init__(
        self, answer_id: str, created: int, model: str, *, choices: int, tool: str | None, include_usage: bool
    ) -> None:
        self._answer_id = answer_id
        self._created = created
        self._model = model
        self._choices = choices
        self._tool = tool
        self._include_usage = include_usage
        self._text = around(self._chunk(0, {"content": _MARK}, {}), _MARK)

    def head(self) -> bytes:
        out = []
        for choice in range(self._choices):
            event = self._chunk(choice, {"role": "assistant", "content": ""}, {})
            out.append(_event(event | {"prompt_token_ids": None, "prompt_text": None}))
            if self._tool is not None:
                function = {"name": self._tool, "arguments": '{"text":"'}
                call = {"id": self._call_id(choice), "type": "function", "index": 0, "function": function}
                out.append(_event(self._chunk(choice, {"tool_calls": [call]}, {})))
        return b"".join(out)

    def piece(self, choice: int, escaped: bytes, finish: str | None) -> bytes:
        if self._tool is None and finish is None and choice == 0:
            before, after = self._text
            return b"data: " + before + escaped + after + b"\n\n"
        text = json.loads(b'"' + escaped + b'"')
        if self._tool is None:
            delta: dict[str, Any] = {"content": text}
        else:
            inner = escaped.decode() + ('"}' if finish else "")
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": inner}}]}
        end = {} if finish is None else {"finish_reason": self._finish(finish), "stop_reason": None}
        return _event(self._chunk(choice, delta, end))

    def tail(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        details = {"cached_tokens": usage.cached, "created_cache_tokens": usage.created}
        last = self._base("chat.completion.chunk") | {"choices": [], "usage": _usage(usage, details)}
        return _event(last | {"system_fingerprint": FINGERPRINT}) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        details = {"cached_tokens": usage.cached, "created_cache_tokens": usage.created, "multimodal_tokens": None}
        return self._base("chat.completion") | {
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": _usage(usage, details) | {"completion_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        message |= {"annotations": None, "audio": None, "function_call": None, "reasoning": None}
        if self._tool is not None:
            function = {"name": self._tool, "arguments": json.dumps({"text": choice.text}, separators=(",", ":"))}
            message["content"] = None
            message["tool_calls"] = [{"id": self._call_id(index), "type": "function", "function": function}]
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish(choice.finish),
            "stop_reason": None,
            "token_ids": None,
        }

    def _finish(self, finish: str) -> str:
        return finish if self._tool is None else "tool_calls"

    def _call_id(self, choice: int) -> str:
        return f"chatcmpl-tool-{self._answer_id.rpartition('-')[2]}{choice}"

    def _base(self, kind: str) -> dict[str, Any]:
        return {"id": self._answer_id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choice: int, delta: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        one = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None} | end
        return self._base("chat.completion.chunk") | {"choices": [one | {"token_ids": None}]}


class Completions:
    """`/v1/completions`."""

    def __init__(self, answer_id: str, created: int, model: str, *, include_usage: bool) -> None:
        self._answer_id = answer_id
        self._created = created
        self._model = model
        self._include_usage = include_usage
        self._text = around(self._chunk(0, _MARK, None), _MARK)

    def head(self) -> bytes:
        return b""

    def piece(self, choice: int, escaped: bytes, finish: str | None) -> bytes:
        if finish is None and choice == 0:
            before, after = self._text
            return b"data: " + before + escaped + after + b"\n\n"
        return _event(self._chunk(choice, json.loads(b'"' + escaped + b'"'), finish))

    def tail(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        body = _usage(usage, {"cached_tokens": usage.cached})
        last = self._base() | {"choices": [], "usage": body, "system_fingerprint": FINGERPRINT}
        return _event(last) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        details = {"cached_tokens": usage.cached, "created_cache_tokens": None, "multimodal_tokens": None}
        return self._base() | {
            "choices": [
                self._choice(index, choice.text, choice.finish) | {"prompt_logprobs": None, "prompt_token_ids": None}
                for index, choice in enumerate(choices)
            ],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": _usage(usage, details) | {"completion_tokens_details": None},
            "kv_transfer_params": None,
        }

    def _base(self) -> dict[str, Any]:
        return {"id": self._answer_id, "object": "text_completion", "created": self._created, "model": self._model}

    def _choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
        }

    def _chunk(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        return self._base() | {"choices": [self._choice(index, text, finish)]}


def _event(value: object) -> bytes:
    return b"data: " + compact(value) + b"\n\n"


def _usage(usage: Usage, details: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.output,
        "completion_tokens": usage.output,
        "prompt_tokens_details": details,
    }
