"""The blocks of an answer, known once it has ended: the next turn of its chat finds them where it was computed.

An engine caches what it generates. The next turn brings the answer as text, so its blocks can be known only where the
template puts an answer right behind the generation prompt, and the text gives the very tokens that were generated: the
engine's own count of them must agree. A model whose reasoning is cut from the history fails that and is left alone.
The one rule: what is in doubt is not entered. Not here: streamed answers, which cost 1 µs a token to put together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from msgspec import Struct

from policies.blocks import TOKEN_BYTES, Chain
from router.prompt_cache import Prefix
from router.tokenizers import Tokenizer, TokenizerError
from router.usage import usage

_MOST_TOKENS = 128
"""A longer answer costs more than 30 µs to read, tokenize and hash."""

_USER = {"role": "user", "content": "What is it?"}
_ANSWER = "A store of blocks.\n\n- **KV** blocks"


class Closing(Struct, frozen=True):
    """What a template puts behind an answer."""

    text: str
    beyond_tokens: int
    """Tokens of it after the first, which is the one the engine stops at."""


def closing(render: Callable[[Sequence[dict[str, Any]]], str], tokenizer: Tokenizer, cut: str) -> Closing | None:
    """How a template closes answers; None where it does not put them right behind the generation prompt.

    `render` gives the text of messages with a generation prompt, and `cut` is where texts may be cut.
    """
    if not cut:
        return None
    opened = render([_USER]) + _ANSWER
    whole = render([_USER, {"role": "assistant", "content": _ANSWER}, _USER])
    if not whole.startswith(opened):
        return None
    text = whole[len(opened) :].partition(cut)[0] or cut
    joined, apart, ends = tokenizer.encode([opened + text, opened, text])
    return Closing(text, len(ends) // TOKEN_BYTES - 1) if joined == apart + ends else None


class Open(Struct, frozen=True):
    """A chat's prompt that an answer will continue."""

    tokenizer: Tokenizer
    closing: Closing
    chain: Chain
    """The root of its keys."""
    before: Prefix | None
    """What comes before its last piece."""
    piece: str
    leading: bytes
    """Special ids before the piece; empty unless nothing comes before it."""
    block_tokens: int

    def __repr__(self) -> str:
        return f"<Open after {self.before.tokens if self.before is not None else 0} tokens>"  # none of the text

    def blocks(self, answer: str, prompt_tokens: int, output_tokens: int, known: int) -> tuple[bytes, ...]:
        """Keys that continue the prompt's first `known` blocks up to the answer's end; none where tokens disagree.

        The engine has computed all tokens but the last one, at which it stopped.
        """
        (ids,) = self.tokenizer.encode([self.piece + answer + self.closing.text])
        data = self.leading + ids
        before = self.before.tokens if self.before is not None else 0
        if before + len(data) // TOKEN_BYTES != prompt_tokens + output_tokens + self.closing.beyond_tokens:
            return ()
        keys = (self.before.chain if self.before is not None else self.chain).copy().grow(data, self.block_tokens)
        start = before // self.block_tokens
        return tuple(keys[known - start : (prompt_tokens + output_tokens - 1) // self.block_tokens - start])


def answer_blocks(prompt: Open, body: bytes, prompt_tokens: int, known: int) -> tuple[bytes, ...]:
    """Keys that continue a prompt's first `known` blocks by its answer, the `body` of the reply; none in doubt."""
    try:
        told = usage(body)
        if told.output_tokens is None or told.output_tokens > _MOST_TOKENS or told.prompt_tokens != prompt_tokens:
            return ()
        answer = _text(body)
        if not answer or answer != answer.strip():  # templates trim
            return ()
        return prompt.blocks(answer, prompt_tokens, told.output_tokens, known)
    except (ValueError, LookupError, TypeError, TokenizerError):  # no chat completion
        return ()


def _text(body: bytes) -> str | None:
    """The text of a chat completion that stopped by itself; `body` may be cut, and is then none."""
    if not body.startswith(b"{"):
        return None
    (choice,) = orjson.loads(body)["choices"]  # of several, each is another branch
    message = choice["message"]
    if choice["finish_reason"] != "stop" or message.get("tool_calls"):
        return None
    text = message["content"]
    return text if isinstance(text, str) else None
