"""Reading prompts without a tokenizer of one's own: through a replica's `/tokenize`, or by their text alone.

    ReplicaReader   exact, one round trip for each new prompt; with a replica that does not answer, the text
    TextReader      keys over the text's bytes, four standing for a token: approximate, but stable from turn to turn

The one rule: as for every reader, no body and no replica makes a request fail, or wait longer than `timeout_s`.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from policies.blocks import TOKEN_BYTES, Chain, hittable_blocks, packed
from router.chat import NotText, conversation
from router.prompt_bodies import (
    Prompt,
    are_ids,
    estimated_tokens,
    given_ids,
    plain_text,
    text_size,
    truncation,
    without_blocks,
)
from router.prompt_dialects import as_chat

_CHAT_MEMBERS = (
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "documents",
    "tools",
)
"""What a `/tokenize` request takes over from a chat: all that can change its tokens (vLLM 0.32)."""

_INLINE_BYTES = 64 * 1024  # of text: keys for a million bytes take 20 ms


class ReplicaReader:
    """Tokenizes through a replica, for models whose tokenizer is not at hand."""

    _FAILURES = 3  # in a row; then the replica is left alone for a while
    _REST_S = 10.0
    _ENTRY_BYTES = 600

    def __init__(
        self,
        ask: Callable[[str, Any], Awaitable[Any]],
        *,
        block_tokens: int,
        timeout_s: float = 2.0,
        at_once: int = 8,
        cache_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """`ask(path, json)` posts to some healthy replica and returns its JSON; it may raise anything."""
        self._ask = ask
        self._block_tokens = block_tokens
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(at_once)
        self._text = TextReader(block_tokens=block_tokens)
        self._known: OrderedDict[bytes, Prompt] = OrderedDict()
        self._known_bytes = 0
        self._cache_bytes = cache_bytes
        self._failures = 0
        self._rests_until_s = 0.0

    def describe(self) -> str:
        return "through a replica's /tokenize"

    def at_once(self, body: Mapping[str, Any], chain: Chain) -> None:  # noqa: ARG002 -- `read` does it all
        return None

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:
        prompt = without_blocks(route, text_size(body))
        if prompt is not None:
            return prompt
        ids = given_ids(route, body)
        if ids is not None:
            return self._of_ids(ids, body, chain, "")
        try:
            wanted, doubt = tokenize_body(route, body)
            name = hashlib.sha256(chain.identity() + orjson.dumps([wanted, truncation(body)])).digest()
        except (NotText, TypeError) as error:
            return Prompt(estimated_tokens(body), (), "none", str(error))
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known
        answer, failure = await self._asked(wanted)
        if failure:
            approximate = await self._text.read(route, body, chain)
            return Prompt(approximate.tokens, approximate.blocks, approximate.basis, failure)
        prompt = self._of_ids(answer, body, chain, doubt)
        self._remember(name, prompt)
        return prompt

    async def _asked(self, wanted: Mapping[str, Any]) -> tuple[list[int], str]:
        """The replica's ids, or why there are none."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._rests_until_s:
            return [], "/tokenize did not answer lately; text, not tokens"
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                answer = await self._ask("/tokenize", wanted)
            ids = answer["tokens"]
            if not are_ids(ids):
                raise ValueError("no token ids")
        except Exception as error:  # whatever `ask` raises, the request is served
            self._failures += 1
            if self._failures >= self._FAILURES:
                self._failures = 0
                self._rests_until_s = now_s + self._REST_S
            return [], f"/tokenize did not answer ({type(error).__name__}); text, not tokens"
        self._failures = 0
        return list(ids), ""

    def _of_ids(self, ids: Sequence[int], body: Mapping[str, Any], chain: Chain, doubt: str) -> Prompt:
        limit = truncation(body)
        if limit is not None and limit < len(ids):
            ids = ids[:limit] if body.get("truncation_side") == "right" else ids[-limit:]
        try:
            keys = chain.copy().grow(packed(ids), self._block_tokens)
        except OverflowError as error:
            return Prompt(len(ids), (), "none", str(error))
        hittable = hittable_blocks(len(ids), self._block_tokens)
        blocks, stored = tuple(keys[:hittable]), tuple(keys[hittable:])
        return Prompt(len(ids), blocks, "approximate" if doubt else "exact", doubt, stored)

    def _remember(self, name: bytes, prompt: Prompt) -> None:
        if name not in self._known:
            self._known[name] = prompt
            self._known_bytes += self._size(prompt)
        while self._known_bytes > self._cache_bytes:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= self._size(oldest)

    def _size(self, prompt: Prompt) -> int:
        return self._ENTRY_BYTES + 64 * len(prompt.blocks)


def tokenize_body(route: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The `/tokenize` request that gives the same ids as `body` sent to `route`, and a doubt about it.

    Raises `NotText` for a prompt that is more than text: its placeholders are the same whatever they stand for.
    """
    chat, doubt = as_chat(route, body)
    if "messages" in chat:
        beyond = conversation(chat, takes_parts=False, knows_developer=True).beyond_text
        if beyond:
            raise NotText(beyond)
        wanted = {name: chat[name] for name in _CHAT_MEMBERS if chat.get(name) is not None}
    else:
        wanted = {"prompt": plain_text(body)}
        if isinstance(body.get("add_special_tokens"), bool):
            wanted["add_special_tokens"] = body["add_special_tokens"]
    if isinstance(body.get("model"), str):
        wanted["model"] = body["model"]
    return wanted, doubt


class TextReader:
    """Keys over the text itself: what is left when nothing can tokenize."""

    def __init__(self, *, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def describe(self) -> str:
        return "by text, four bytes to a token (approximate)"

    def at_once(self, body: Mapping[str, Any], chain: Chain) -> None:  # noqa: ARG002 -- `read` does it all
        return None

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:
        prompt = without_blocks(route, text_size(body))
        if prompt is not None:
            return prompt
        try:
            ids = given_ids(route, body)
            data = packed(ids) if ids is not None else _bytes(body)
        except (TypeError, OverflowError) as error:
            return Prompt(estimated_tokens(body), (), "none", f"the prompt can't be read ({type(error).__name__})")
        if not data:
            return Prompt(0, (), "none", "the body holds no prompt")
        tokens = len(data) // TOKEN_BYTES
        grow = chain.copy().grow
        inline = len(data) <= _INLINE_BYTES
        keys = grow(data, self._block_tokens) if inline else await asyncio.to_thread(grow, data, self._block_tokens)
        blocks = tuple(keys[: hittable_blocks(tokens, self._block_tokens)])
        if ids is not None:
            return Prompt(tokens, blocks, "exact")
        return Prompt(tokens, blocks, "approximate", "text, not tokens")


def _bytes(body: Mapping[str, Any]) -> bytes:
    """The prompt's members one after the other, so that a longer conversation begins with the shorter one's bytes."""
    parts = [orjson.dumps(body[name]) for name in ("tools", "system", "instructions") if body.get(name)]
    for name in ("messages", "prompt", "input"):
        given = body.get(name)
        if isinstance(given, list) and name != "prompt":
            parts += map(orjson.dumps, given)
        elif given:
            parts.append(orjson.dumps(given[0] if isinstance(given, list) else given))
            if name == "prompt":
                parts[-1] = parts[-1].rstrip(b'"')
    return b"".join(parts)


class Unread:
    """Prompts nobody needs: the policy places requests without looking at them."""

    def __repr__(self) -> str:
        return "<Unread>"

    def at_once(self, body: Mapping[str, Any], chain: Chain) -> Prompt:  # noqa: ARG002 -- unread
        return _UNREAD

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:  # noqa: ARG002 -- unread
        return _UNREAD

    def describe(self) -> str:
        return "prompts are not read"


_UNREAD = Prompt(0, (), "none", "prompts are not read")
