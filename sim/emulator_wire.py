"""How chat and text completions look on the wire, plain and streamed: the field names and order of vLLM 0.32.

The one rule: everything of a stream that does not change from token to token is formatted once, so a token costs a few
bytes joined. The event-shaped dialects are in `emulator_messages` and `emulator_responses`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sim.emulator_json import around, event, unescaped
from sim.emulator_logprobs import Token, of_chat, of_completion, of_prompt
from sim.emulator_requests import Ask
from sim.emulator_sampling import End

FINGERPRINT = "vllm-0.32.0-simulated"
DONE = b"data: [DONE]\n\n"
MARK = "\ue000"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, all prompts and choices together. `created` counts prompt tokens newly cached."""

    prompt: int
    cached: int
    created: int
    output: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished answer. `text` begins with an echoed prompt; `prompt` is empty when nobody wants its tokens."""

    text: str
    tokens: Sequence[Token]
    end: End
    prompt: Sequence[Token] = ()

    @property
    def ids(self) -> list[int]:
        return [token for token, _ in self.tokens]


class Dialect(Protocol):
    """One request's way of answering. `escaped` is a token's text as the inside of a JSON string."""

    def head(self) -> bytes:
        """What a stream begins with, before any token."""

    def piece(self, choice: int, token: int, escaped: bytes, end: End | None) -> bytes:
        """One new token of one choice, the last when `end` is given."""

    def tail(self, usage: Usage) -> bytes:
        """What a stream ends with."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer to a request that is not streamed."""


class Chat:
    """`/v1/chat/completions`. With a forced tool the text becomes the argument of one call of it."""

    def __init__(self, answer_id: str, created: int, ask: Ask) -> None:
        self._answer_id = answer_id
        self._created = created
        self._ask = ask
        self._running = _RunningUsage(ask)
        self._top = ask.sampling.logprobs
        self._plain = ask.tool is None and not ask.return_token_ids and not ask.continuous_usage and self._top is None
        self._text = around(self._chunk({"index": 0, "delta": {"content": MARK}} | _OPEN), MARK)

    def head(self) -> bytes:
        out = []
        ids = list(self._ask.prompts[0]) if self._ask.return_token_ids else None
        for index in range(self._ask.choices):
            first = {"index": index, "delta": {"role": "assistant", "content": ""}}
            chunk = self._chunk(first | {"logprobs": None, "finish_reason": None}) | self._running.shown(index)
            out.append(event(chunk | {"prompt_token_ids": ids, "prompt_text": None}))
            if self._ask.tool is not None:
                function = {"name": self._ask.tool, "arguments": '{"text":"'}
                call = {"id": self._call_id(index), "type": "function", "index": 0, "function": function}
                out.append(event(self._chunk({"index": index, "delta": {"tool_calls": [call]}} | _OPEN)))
        return b"".join(out)

    def piece(self, choice: int, token: int, escaped: bytes, end: End | None) -> bytes:
        if self._plain and end is None and choice == 0:
            before, after = self._text
            return b"data: " + before + escaped + after + b"\n\n"
        if self._ask.tool is None:
            delta: dict[str, Any] = {"content": unescaped(escaped)}
        else:
            inner = escaped.decode() + ('"}' if end else "")
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": inner}}]}
        body = {"index": choice, "delta": delta, "logprobs": self._logprobs([(token, unescaped(escaped))])}
        body |= {"finish_reason": None} if end is None else {"finish_reason": self._finish(end)}
        body |= {} if end is None else {"stop_reason": end.at}
        body["token_ids"] = [token] if self._ask.return_token_ids else None
        chunk = self._chunk(body) | self._running.counted(choice)
        return event(chunk | _fingerprint(self._ask, end))

    def tail(self, usage: Usage) -> bytes:
        details = {"cached_tokens": usage.cached, "created_cache_tokens": usage.created}
        return _tail(self._ask, self._base("chat.completion.chunk"), usage, details)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        details = {"cached_tokens": usage.cached, "created_cache_tokens": usage.created, "multimodal_tokens": None}
        return self._base("chat.completion") | {
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": _usage(usage, details) | {"completion_tokens_details": None},
            "prompt_logprobs": _prompt_logprobs(self._ask, choices[0]),
            "prompt_token_ids": list(self._ask.prompts[0]) if self._ask.return_token_ids else None,
            "prompt_text": None,
            **_UNUSED,
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        message |= {"annotations": None, "audio": None, "function_call": None, "reasoning": None}
        if self._ask.tool is not None:
            arguments = json.dumps({"text": choice.text}, separators=(",", ":"))
            function = {"name": self._ask.tool, "arguments": arguments}
            message["content"] = None
            message["tool_calls"] = [{"id": self._call_id(index), "type": "function", "function": function}]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": self._finish(choice.end),
            "stop_reason": choice.end.at,
            "token_ids": choice.ids if self._ask.return_token_ids else None,
            "routed_experts": None,
        }

    def _finish(self, end: End) -> str:
        return end.why if self._ask.tool is None else "tool_calls"

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return None if self._top is None else of_chat(tokens, self._top)

    def _call_id(self, choice: int) -> str:
        return f"chatcmpl-tool-{self._answer_id.rpartition('-')[2]}{choice}"

    def _base(self, kind: str) -> dict[str, Any]:
        return {"id": self._answer_id, "object": kind, "created": self._created, "model": self._ask.model}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._base("chat.completion.chunk") | {"choices": [choice]}


class Completions:
    """`/v1/completions`."""

    def __init__(self, answer_id: str, created: int, ask: Ask) -> None:
        self._answer_id = answer_id
        self._created = created
        self._ask = ask
        self._running = _RunningUsage(ask)
        self._logprobs = ask.sampling.logprobs is not None
        self._plain = not ask.return_token_ids and not ask.continuous_usage and not self._logprobs
        self._begun: set[int] = set()
        self._shown = [0] * (len(ask.prompts) * ask.choices)
        self._text = around(self._chunk(0, MARK, None, None, None), MARK)

    def head(self) -> bytes:
        return b""

    def piece(self, choice: int, token: int, escaped: bytes, end: End | None) -> bytes:
        if self._plain and end is None and choice == 0:
            before, after = self._text
            return b"data: " + before + escaped + after + b"\n\n"
        prompt = None
        if self._ask.return_token_ids and choice not in self._begun:
            prompt = self._prompt(choice)
            self._begun.add(choice)
        ids = [token] if self._ask.return_token_ids else None
        text = unescaped(escaped)
        chunk = self._chunk(choice, text, end, prompt, ids) | self._running.counted(choice)
        if self._logprobs:
            chunk["choices"][0]["logprobs"] = of_completion((), [(token, text)], self._shown[choice])
            self._shown[choice] += len(text)
        return event(chunk | _fingerprint(self._ask, end))

    def tail(self, usage: Usage) -> bytes:
        return _tail(self._ask, self._base(), usage, {"cached_tokens": usage.cached})

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        details = {"cached_tokens": usage.cached, "created_cache_tokens": None, "multimodal_tokens": None}
        return self._base() | {
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": _usage(usage, details) | {"completion_tokens_details": None},
            **_UNUSED,
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        asked = self._ask.return_token_ids
        shown = self._choice(index, choice.text, choice.end)
        if self._logprobs:
            shown["logprobs"] = of_completion(choice.prompt if self._ask.sampling.echo else (), choice.tokens, 0)
        return shown | {
            "token_ids": choice.ids if asked else None,
            "prompt_logprobs": _prompt_logprobs(self._ask, choice),
            "prompt_token_ids": self._prompt(index) if asked else None,
            "routed_experts": None,
        }

    def _prompt(self, choice: int) -> list[int]:
        return list(self._ask.prompts[choice // self._ask.choices])

    def _base(self) -> dict[str, Any]:
        model = self._ask.model
        return {"id": self._answer_id, "object": "text_completion", "created": self._created, "model": model}

    @staticmethod
    def _choice(index: int, text: str, end: End | None) -> dict[str, Any]:
        ended = {"finish_reason": end and end.why, "stop_reason": end and end.at}
        return {"index": index, "text": text, "logprobs": None} | ended

    def _chunk(
        self, index: int, text: str, end: End | None, prompt: list[int] | None, ids: list[int] | None
    ) -> dict[str, Any]:
        choice = self._choice(index, text, end) | {"prompt_token_ids": prompt, "token_ids": ids}
        return self._base() | {"choices": [choice]}


_OPEN = {"logprobs": None, "finish_reason": None, "token_ids": None}
_UNUSED = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


class _RunningUsage:
    """The usage that rides on every chunk when a client wants it continuously."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._made = [0] * (len(ask.prompts) * ask.choices)

    def counted(self, choice: int) -> dict[str, Any]:
        self._made[choice] += 1
        return self.shown(choice)

    def shown(self, choice: int) -> dict[str, Any]:
        if not self._ask.continuous_usage:
            return {}
        prompt, made = len(self._ask.prompts[choice // self._ask.choices]), self._made[choice]
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
        return {"usage": counts | {"completion_tokens_details": None}}


def _prompt_logprobs(ask: Ask, choice: Choice) -> list[dict[str, Any] | None] | None:
    return None if ask.sampling.prompt_logprobs is None else of_prompt(choice.prompt)


def _fingerprint(ask: Ask, end: End | None) -> dict[str, str]:
    """It rides on the last chunk: the one with the usage, or else the one that ends the choice."""
    return {} if end is None or ask.include_usage else {"system_fingerprint": FINGERPRINT}


def _tail(ask: Ask, base: dict[str, Any], usage: Usage, details: dict[str, Any]) -> bytes:
    if not ask.include_usage:
        return DONE
    return event(base | {"choices": [], "usage": _usage(usage, details), "system_fingerprint": FINGERPRINT}) + DONE


def _usage(usage: Usage, details: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.output,
        "completion_tokens": usage.output,
        "prompt_tokens_details": details,
    }
