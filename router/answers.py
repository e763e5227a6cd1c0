"""The blocks of an answer, known once it has ended: the next turn of its chat finds them where it was computed.

An engine caches what it generates. The next turn brings the answer as text, so its blocks can be known only where the
template puts an answer right behind the generation prompt, and the text gives the very tokens that were generated: the
engine's own count of them must agree. A model whose reasoning is cut from the history fails that and is left alone.
The one rule: what is in doubt is not entered. Not here: how a streamed answer is put together (`heard`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from policies.blocks import TOKEN_BYTES, Chain
from policies.values import Value
from router.prompt_cache import Prefix
from router.tokenizers import Tokenizer, TokenizerError

_MOST_INLINE: Final = 8 * 1024  # characters; a longer answer takes over half a millisecond to tokenize and hash

_USER: Final = {"role": "user", "content": "What is it?"}
_ANSWER: Final = "A store of blocks.\n\n- **KV** blocks"


class Closing(Value, frozen=True):
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


class Answer(Value, frozen=True):
    """What an engine answered, with its own counts of tokens as far as it told them."""

    text: str
    prompt_tokens: int | None
    output_tokens: int

    def __repr__(self) -> str:
        return f"<Answer of {self.output_tokens} tokens>"  # none of the text


class Open(Value, frozen=True):
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

    def reads_at_once(self, answer: Answer) -> bool:
        """Whether its blocks may be made on the event loop."""
        return len(self.piece) + len(answer.text) <= min(_MOST_INLINE, self.tokenizer.inline_bytes)

    def blocks(self, answer: str, prompt_tokens: int, output_tokens: int, known: int) -> tuple[bytes, ...]:
        """Keys that continue the prompt's first `known` blocks up to the answer's end; none where tokens disagree.

        The engine has computed all tokens but the last one, at which it stopped.
        """
        ids = self.tokenizer.encode_one(self.piece + answer + self.closing.text)
        data = self.leading + ids
        before = self.before.tokens if self.before is not None else 0
        if before + len(data) // TOKEN_BYTES != prompt_tokens + output_tokens + self.closing.beyond_tokens:
            return ()
        keys = (self.before.chain if self.before is not None else self.chain).copy().grow(data, self.block_tokens)
        start = before // self.block_tokens
        return tuple(keys[known - start : (prompt_tokens + output_tokens - 1) // self.block_tokens - start])


def answer_blocks(prompt: Open, answer: Answer, prompt_tokens: int, known: int) -> tuple[bytes, ...]:
    """Keys that continue a prompt's first `known` blocks by its answer; none in doubt."""
    if answer.prompt_tokens not in (None, prompt_tokens) or not answer.text:
        return ()
    if answer.text != answer.text.strip():  # templates trim
        return ()
    try:
        return prompt.blocks(answer.text, prompt_tokens, answer.output_tokens, known)
    except (ValueError, TokenizerError):  # half a character
        return ()


def answer_of(body: bytes) -> Answer | None:
    """The answer of a chat completion that stopped by itself; None of anything else, and of one that is cut."""
    try:
        told = orjson.loads(body)
        (choice,) = told["choices"]  # of several, each is another branch
        message = choice["message"]
        text = message["content"]
        prompt_tokens, output_tokens = told["usage"].get("prompt_tokens"), told["usage"]["completion_tokens"]
        if choice["finish_reason"] != "stop" or choice.get("stop_reason") is not None or message.get("tool_calls"):
            return None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    if not isinstance(text, str) or not isinstance(output_tokens, int) or not isinstance(prompt_tokens, int | None):
        return None
    return Answer(text, prompt_tokens, output_tokens)
