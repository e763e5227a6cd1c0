"""What a request body says of its prompt before anybody tokenizes it: given ids, plain text, how much text there is.

The one rule: nothing here costs more than a walk over the body's members. Not here: chats (`router.chat`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from policies.blocks import Chain
from policies.values import Value
from router.answers import Answer, Open, answer_blocks
from router.chat import NotText, part_text

BYTES_PER_TOKEN: Final = 4  # of English text, roughly; for prompts that can't be tokenized

LONGEST_TEXT: Final = 8 * 1024 * 1024
"""Characters; a longer prompt fits no engine's context. It is served all the same, but placed by load."""

POOLING: Final = frozenset(
    [
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/pooling",
        "/classify",
        "/v2/embed",
    ]
)
"""Routes whose requests can't read the prefix cache, so they are placed by load (vLLM 0.32 skips the look-up)."""

NOT_RUN: Final = frozenset(
    [
        "/tokenize",
        "/detokenize",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/render",
        "/v1/completions/render",
    ]
)
"""Routes that only tokenize: no engine runs, no cache is read or filled."""


PLAIN: Final = frozenset(
    [
        "model",
        "messages",
        "cache_salt",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "min_p",
        "min_tokens",
        "parallel_tool_calls",
        "presence_penalty",
        "priority",
        "prompt_cache_key",
        "repetition_penalty",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
    ]
)
"""Members of a plain chat: its messages, and what neither a template nor the look-up in a cache sees (vLLM 0.32).

A chat with no others has one prompt, made of its messages alone, and asks for one reply. (`response_format` is seen by
vLLM's own renderer for Kimi K3, whose prompts no template here makes.)
"""


Basis = Literal["exact", "approximate", "none"]
"""How well a prompt is known: its own tokens, tokens or text that may differ from the engine's, or nothing of it."""


class Prompt(Value, frozen=True):
    """What placing a request needs to know of its prompt."""

    tokens: int
    """Exact, or estimated from the text when `basis` is not `exact`."""
    blocks: Sequence[bytes]
    """Keys of the full blocks that may hit; empty when there is no prefix information."""
    basis: Basis
    reason: str = ""
    """Why the basis is not exact, in words without any of the prompt's text."""
    stored: Sequence[bytes] = ()
    """Keys that continue `blocks`: full blocks this request fills but can't read, its very last one for instance."""
    opened: Open | None = None
    """The same as its answer will continue it; None where the next turn's tokens can't be told from the answer."""
    alone: bool = True
    """Whether an engine reports what it found of this prompt. Of several prompts or samples in one body it reports the
    last one's find (vLLM 0.32), which the others had just stored."""
    answers: int = 1
    """How many the prompt gets; 0 for several prompts, of whose answers only the sum is told."""

    def stored_by(self, answer: Answer) -> Sequence[bytes]:
        """Keys that continue `blocks`, those of the answer too where they are known."""
        if self.opened is None or not self.alone:
            return self.stored
        return answer_blocks(self.opened, answer, self.tokens, len(self.blocks)) or self.stored


class PromptReader(Protocol):
    """Reads the prompts of one model."""

    def at_once(self, body: Mapping[str, Any], chain: Chain) -> Prompt | None:
        """The prompt of a plain chat that is read in a few microseconds; None where `read` has to. Raises nothing."""
        ...

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:
        """The prompt of `body` sent to `route`, its keys chained from `chain`. Raises nothing, whatever the body."""
        ...

    def describe(self) -> str:
        """One line for people: how prompts are read."""
        ...


def without_blocks(route: str, size: int) -> Prompt | None:
    """The prompt of a request that can't profit from a cache, whoever reads it; None for any other.

    `size` is the body's `text_size`.
    """
    if route in POOLING:
        return Prompt(size // BYTES_PER_TOKEN, (), "none", "pooling requests can't read the prefix cache")
    if route in NOT_RUN:
        return Prompt(size // BYTES_PER_TOKEN, (), "none", "nothing runs on the engine")
    if size > LONGEST_TEXT:
        return Prompt(size // BYTES_PER_TOKEN, (), "none", "the prompt is longer than any engine takes")
    return None


def given_ids(route: str, body: Mapping[str, Any]) -> Sequence[int] | None:
    """Token ids the client sent itself; of a batch, the first prompt's. None when the prompt is text.

    `kv_transfer_params.prompt_token_ids` replaces a chat's rendering in vLLM 0.32 and 0.33, connector or not.
    """
    transfer = body.get("kv_transfer_params")
    if isinstance(transfer, Mapping) and are_ids(transfer.get("prompt_token_ids")):
        return list(transfer["prompt_token_ids"])
    if route == "/inference/v1/generate":
        prompt = body.get("token_ids")
    else:
        prompt = body.get("input" if route in POOLING else "prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        prompt = prompt[0]
    return prompt if are_ids(prompt) else None


def are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def plain_text(body: Mapping[str, Any]) -> str:
    """The text of a prompt that is no chat; of a batch, the first. Raises `NotText` when there is none."""
    for name in ("prompt", "input", "text", "query"):
        value = body.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str) and value:
            return value
    raise NotText("the body holds no text prompt")


def truncation(body: Mapping[str, Any]) -> int | None:
    """How many tokens at the prompt's end the client wants kept; None when all of them."""
    limit = body.get("truncate_prompt_tokens")
    return limit if type(limit) is int and limit > 0 else None


_TEXTS: Final = ("messages", "prompt", "input", "system", "instructions", "text")


def text_size(body: Mapping[str, Any]) -> int:
    """Characters of text in a body; images and the like do not count."""
    return sum([_size(body[name]) for name in _TEXTS if name in body])


def _size(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is dict:
        content = value.get("content")
        if isinstance(content, str):
            return len(content)
        text = part_text(value)
        return len(text) if text is not None else _size(content)
    if kind is list:
        if value and isinstance(value[0], int):
            return len(value) * BYTES_PER_TOKEN
        return sum(map(_size, value))
    return 0


def estimated_tokens(body: Mapping[str, Any]) -> int:
    """Tokens of a prompt nobody could read."""
    return text_size(body) // BYTES_PER_TOKEN
