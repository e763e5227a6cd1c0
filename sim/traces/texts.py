"""Texts as blocks: with the model's own tokens where the caller has a tokenizer, else four bytes a token.

The one rule: two prompts have equal keys exactly as far as their full blocks are equal, whoever made the tokens.
Without a tokenizer a chat is written down in a plain form of our own, which keeps what is common common; its lengths
are approximate. Not here: which member of a trace holds the text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from policies.blocks import TOKEN_BYTES, Chain, packed
from sim.traces.rows import Ask, BadRow, Item

Tokenize = Callable[[str, dict[str, Any]], list[int]]
"""Route and request body in, prompt tokens out: what the replica would count."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
APPROXIMATE = "no tokenizer: lengths are approximate, 4 bytes a token"


class Texts:
    """Counts prompts and answers, and names their blocks by dense numbers from 0."""

    def __init__(self, tokenize: Tokenize | None, block_tokens: int) -> None:
        self.approximate = tokenize is None
        self.used = False
        self._tokenize = tokenize
        self.block_tokens = block_tokens
        self._numbers: dict[bytes, int] = {}

    def read(self, ask: Ask, model: str) -> tuple[int, int | None, list[int]]:
        """Prompt tokens, answer tokens, and the blocks of both together. Raises `BadRow`."""
        self.used = True
        prompt = self._prompt(ask)
        answer = None if ask.answer is None else self._answer(ask.answer)
        data = prompt if answer is None else prompt + answer
        keys = Chain.root(model).grow(data, self.block_tokens)
        numbers = self._numbers
        blocks = [numbers.setdefault(key, len(numbers)) for key in keys]
        return _count(prompt), None if answer is None else _count(answer), blocks

    def _prompt(self, ask: Ask) -> bytes:
        if self._tokenize is None:
            return b"".join(_written(ask.body))
        return self._tokens(ask.route, dict(ask.body))

    def _answer(self, text: str) -> bytes:
        if self._tokenize is None:
            return _bytes(text)
        return self._tokens(COMPLETIONS, {"prompt": text, "add_special_tokens": False}) if text else b""

    def _tokens(self, route: str, body: dict[str, Any]) -> bytes:
        assert self._tokenize is not None  # noqa: S101 -- the callers asked
        try:
            return packed(self._tokenize(route, body))
        except Exception as error:
            raise BadRow("can't be tokenized", f"{type(error).__name__}: {error}"[:200]) from error


def _count(data: bytes) -> int:
    return -(-len(data) // TOKEN_BYTES)


def _whole_tokens(data: bytes) -> bytes:
    return data + bytes(-len(data) % TOKEN_BYTES)


def _written(body: Item) -> Iterator[bytes]:
    """A request in plain form, piece by piece; every piece is a whole number of tokens, so an answer fits behind."""
    if "messages" in body:
        if body.get("tools"):
            yield _whole_tokens(_bytes(orjson.dumps(body["tools"], option=orjson.OPT_SORT_KEYS)))
        if body.get("system"):
            yield _message("system", body["system"])
        messages = body["messages"]
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise BadRow("messages is no list")
        for message in messages:
            if not isinstance(message, Mapping):
                raise BadRow("a message is no object")
            calls = message.get("tool_calls")
            told = [message.get("content"), calls] if calls else message.get("content")
            yield _message(str(message.get("role")), told)
        yield _opening("assistant")
        return
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        try:
            yield packed(prompt)
        except OverflowError:
            raise BadRow("a token id is negative or of more than 32 bits") from None
    else:
        yield _bytes(text_of(prompt))


def _message(role: str, content: object) -> bytes:
    return _opening(role) + _whole_tokens(_bytes(text_of(content)))


def _opening(role: str) -> bytes:
    return _whole_tokens(b"\x1e" + _bytes(role) + b"\x1f")


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def text_of(content: object) -> str:
    """The text in a message's content, in whichever of the usual shapes; what is no text is written as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(part) for part in content)
    if isinstance(content, Mapping):
        told = content.get("text", content.get("content"))
        if isinstance(told, str):
            return told
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()
