"""From a request body to its prompt's length and block keys, exactly as the engine makes them, in this process.

The rendered text is cut before one safe special token; pieces seen before are not tokenized or hashed again, so a
conversation's next turn costs its new text alone. Long texts go to a thread; short ones are read without a pause.
The one rule: no body makes a request fail here; what can't be read is a `Prompt` without blocks that says why.
Not here: loading (`router.readers`), reading without a tokenizer (`router.prompt_fallbacks`).
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from policies.blocks import TOKEN_BYTES, Chain, block_keys, hittable_blocks, packed
from policies.values import Value
from router.answers import Closing, Open, closing
from router.chat import NotText, conversation, without_mark
from router.prompt_bodies import (
    BYTES_PER_TOKEN,
    POOLING,
    Basis,
    Prompt,
    PromptReader,
    estimated_tokens,
    given_ids,
    plain_text,
    text_size,
    truncation,
    without_blocks,
)
from router.prompt_cache import Prefix, PrefixCache, names, utf8
from router.prompt_dialects import as_chat
from router.prompt_fallbacks import ReplicaReader, TextReader
from router.render_plans import SHAPING, RenderPlans
from router.templates import ChatTemplate, TemplateError
from router.tokenizers import Tokenizer, TokenizerError, pieces

__all__ = ["POOLING", "LocalReader", "Prompt", "PromptReader", "ReplicaReader", "TextReader"]

_log: Final = logging.getLogger("router.prompts")

_MESSAGES_INLINE: Final = 400  # rendering takes 10 to 25 us a message
_RENDER_INLINE: Final = 256 * 1024  # characters; a longer conversation is rendered and named in a thread
_SHORT: Final = 1024  # characters; tokenizing a shorter text whole costs less than looking for its pieces
_GIVEN_INLINE: Final = 64 * 1024  # tokens; hashing more takes over a millisecond

_CHAT: Final = "/v1/chat/completions"

_PROBE: Final = (
    "What is it?",
    "A store.\n\nOf blocks.",
    "  Why?  ",
    "<b>1 234</b> Gr\u00fc\u00dfe \u4f60\u597d",
    "thanks",
)

T = TypeVar("T")

Rendered = tuple[str, tuple[int, ...], tuple[int, ...], str, int]
"""The text, special ids before and behind it, a doubt about it, and an estimate of the tokens beyond it."""


class _Text(Value, frozen=True):
    """A prompt as text, and what goes around it."""

    pieces: list[bytes]
    """UTF-8."""
    names: list[bytes]
    """Names of all prefixes but the whole: the last piece (a generation prompt) will not come back."""
    leading: bytes
    trailing: bytes
    doubt: str
    """Why this text may differ from the engine's; empty when it does not."""
    tokens_after: int
    """Estimated tokens beyond the text that is known."""


class LocalReader:
    """Renders and tokenizes in this process."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        block_tokens: int,
        cache_bytes: int = 64 * 1024 * 1024,
        executor: Executor | None = None,
        source: str = "",
    ) -> None:
        """`executor` takes texts too long for the event loop; None leaves them to asyncio's default one."""
        self.tokenizer = tokenizer
        self.template = template
        self.doubt = ""
        """Why these ids may differ from the engine's, where a comparison found that they do."""
        self._block_tokens = block_tokens
        self._cache = PrefixCache(cache_bytes)
        self._seed = secrets.randbits(64)
        self._executor = executor
        self._source = source
        self._cut = self._best_cut()
        self._plans = RenderPlans(template, self._cut) if template is not None else None
        self._closing = self._answer_closing()
        tokenizer.encode(["warm up: the first call of an engine is its slowest"])

    def __repr__(self) -> str:
        return f"<LocalReader {self.describe()}; {self._cache!r}>"

    def describe(self) -> str:
        cached = f"cut before {self._cut!r}" if self._cut else "no safe cut, whole prompts"
        return f"{self._source or 'local'} ({self.tokenizer.engine}, {cached})"

    def at_once(self, body: Mapping[str, Any], chain: Chain) -> Prompt | None:
        """That of a short chat of a shape seen before."""
        if self._plans is None:
            return None
        try:
            text = self._plans.text(body, _SHORT)
            if text is None or len(text) > _SHORT:
                return None
            ids = self.tokenizer.encode_one(text)
        except Exception:  # `read` says why
            return None
        block_tokens, closing, doubt = self._block_tokens, self._closing, self.doubt
        keys = block_keys(chain, ids, block_tokens)
        tokens = len(ids) // TOKEN_BYTES
        hittable = hittable_blocks(tokens, block_tokens)
        opened = None if closing is None else Open(self.tokenizer, closing, chain, None, text, b"", block_tokens)
        basis: Basis = "approximate" if doubt else "exact"
        return Prompt(tokens, keys[:hittable], basis, doubt, keys[hittable:], opened)

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:
        try:
            size = text_size(body)
            prompt = without_blocks(route, size) or await self._read(route, body, chain, size)
        except (NotText, TemplateError, TokenizerError, OverflowError) as error:
            return Prompt(estimated_tokens(body), (), "none", str(error))
        except Exception as error:
            # A body must never fail a request here; only the kind of error is logged, for it may quote the prompt.
            _log.error("a prompt sent to %s can't be read (%s): placed by load", route, type(error).__name__)
            return Prompt(0, (), "none", f"the prompt can't be read ({type(error).__name__})")
        if self.doubt and prompt.basis == "exact":
            return replace(prompt, basis="approximate", reason=self.doubt)
        return prompt

    def token_ids(self, route: str, body: Mapping[str, Any]) -> list[int]:
        """The whole prompt's ids, past every cache. Raises `NotText`, `TemplateError` or `TokenizerError`."""
        ids = given_ids(route, body)
        if ids is None:
            text, leading, trailing, _, _ = self._rendered(route, body)
            ids = [*leading, *memoryview(self.tokenizer.encode_one(text)).cast("I"), *trailing]
        return list(_truncated(ids, body))

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    # -- text ------------------------------------------------------------------------------------------------------

    def _rendered(self, route: str, body: Mapping[str, Any]) -> Rendered:
        before, behind = self.tokenizer.special_prefix, self.tokenizer.special_suffix
        chat, doubt = as_chat(route, body)
        if "messages" not in chat:
            if body.get("add_special_tokens") is False:
                before = behind = ()
            return plain_text(body), before, behind, doubt, 0
        if self.template is None:
            raise NotText("the tokenizer has no chat template")
        if chat.get("chat_template"):
            raise NotText("the request brings its own chat template")
        asked = conversation(chat, takes_parts=self.template.takes_parts, knows_developer=self.template.knows_developer)
        text = self.template.render(
            asked.messages, asked.tools, asked.variables, add_generation_prompt=asked.add_generation_prompt
        )
        after = ""
        if asked.beyond_text or asked.continues:
            text, after = without_mark(text, continues=asked.continues)
        tokens_after = len(after) // BYTES_PER_TOKEN if asked.beyond_text else 0
        if not asked.add_special_tokens:
            before = behind = ()
        return text, before, behind, asked.beyond_text or doubt, tokens_after

    def _text(self, route: str, body: Mapping[str, Any], chain: Chain) -> _Text:
        planned = self._planned(route, body)
        if planned is not None:
            cut, before, behind, doubt = planned
            after = 0
        else:
            text, before, behind, doubt, after = self._rendered(route, body)
            cut = [utf8(piece) for piece in pieces(text, self._cut)]
        leading, trailing = packed(before), packed(behind)
        if sum(map(len, cut)) <= _SHORT:
            return _Text([b"".join(cut)], [], leading, trailing, doubt, after)
        return _Text(cut, names(cut[:-1], chain.identity() + leading, self._seed), leading, trailing, doubt, after)

    def _planned(
        self, route: str, body: Mapping[str, Any]
    ) -> tuple[list[bytes], tuple[int, ...], tuple[int, ...], str] | None:
        """A chat of a shape seen before in pieces, without running the template."""
        if self._plans is None:
            return None
        chat, doubt = as_chat(route, body)
        cut = self._plans.cut_text(chat)
        if cut is None:
            return None
        if chat.get("add_special_tokens") is True:
            return cut, self.tokenizer.special_prefix, self.tokenizer.special_suffix, doubt
        return cut, (), (), doubt

    def _best_cut(self) -> str:
        if self.template is None:
            return ""
        roles = ("user", "assistant", "user", "assistant", "user")
        probe = {"messages": [{"role": role, "content": text} for role, text in zip(roles, _PROBE, strict=True)]}
        try:
            return self.tokenizer.best_cut(self._rendered("", probe)[0])
        except (NotText, TemplateError, TokenizerError):
            return ""

    def _answer_closing(self) -> Closing | None:
        if self.template is None:
            return None
        try:
            return closing(lambda messages: self._rendered(_CHAT, {"messages": messages})[0], self.tokenizer, self._cut)
        except (NotText, TemplateError, TokenizerError):
            return None

    # -- tokens and keys -------------------------------------------------------------------------------------------

    async def _read(self, route: str, body: Mapping[str, Any], chain: Chain, size: int) -> Prompt:
        ids = given_ids(route, body)
        if ids is not None:
            return await self._inline(len(ids) <= _GIVEN_INLINE, lambda: self._of_ids(_truncated(ids, body), chain))
        if truncation(body) is not None:
            inline = size <= self.tokenizer.inline_bytes
            return await self._inline(inline, lambda: self._of_ids(self.token_ids(route, body), chain))
        if size <= _SHORT:
            text = self._text(route, body, chain)
        else:
            inline = size <= _RENDER_INLINE and not _many_messages(body)
            text = await self._inline(inline, lambda: self._text(route, body, chain))
        before: Prefix | None = None
        if text.names:
            before, tokens, keys = await self._tokenized(text, chain)
        else:
            inline = len(text.pieces[0]) <= self.tokenizer.inline_bytes
            tokens, keys = await self._inline(inline, lambda: self._whole(text, chain))
        if text.doubt:
            blocks = keys[: hittable_blocks(tokens, self._block_tokens)]
            return Prompt(tokens + text.tokens_after, blocks, "approximate", text.doubt)
        return self._exact(tokens, keys, self._opened(route, body, text, chain, before))

    def _opened(
        self, route: str, body: Mapping[str, Any], text: _Text, chain: Chain, before: Prefix | None
    ) -> Open | None:
        """The prompt as its answer will continue it, for plain chats."""
        if self._closing is None or route != _CHAT or text.trailing or not SHAPING.isdisjoint(body):
            return None
        last = _decoded(text.pieces[-1])
        return Open(self.tokenizer, self._closing, chain, before, last, text.leading, self._block_tokens)

    async def _inline(self, inline: bool, work: Callable[[], T]) -> T:
        """Short work here and now, long work in a thread."""
        return work() if inline else await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _of_ids(self, ids: Sequence[int], chain: Chain) -> Prompt:
        return self._exact(len(ids), block_keys(chain, packed(ids), self._block_tokens))

    def _exact(self, tokens: int, keys: Sequence[bytes], opened: Open | None = None) -> Prompt:
        hittable = hittable_blocks(tokens, self._block_tokens)
        return Prompt(tokens, keys[:hittable], "exact", "", keys[hittable:], opened=opened)

    def _whole(self, text: _Text, chain: Chain) -> tuple[int, Sequence[bytes]]:
        """A text of one piece, of which nothing is remembered."""
        ids = self.tokenizer.encode_one(_decoded(text.pieces[0]))
        data = text.leading + ids + text.trailing
        return len(data) // TOKEN_BYTES, block_keys(chain, data, self._block_tokens)

    async def _tokenized(self, text: _Text, chain: Chain) -> tuple[Prefix | None, int, Sequence[bytes]]:
        """What comes before the last piece, and all tokens and keys."""
        known, start = self._cache.longest(text.names)
        fresh = [_decoded(piece) for piece in text.pieces[known:]]
        inline = sum(map(len, fresh)) <= self.tokenizer.inline_bytes
        grown = await self._inline(inline, lambda: self._grown(start, chain, text, fresh))
        self._cache.add(text.names, grown[:-1])
        return grown[-1].parent, grown[-1].tokens, grown[-1].all_keys()

    def _grown(self, start: Prefix | None, chain: Chain, text: _Text, fresh: Sequence[str]) -> list[Prefix]:
        """The prefixes that end with each fresh piece. Touches nothing that others may change."""
        grown: list[Prefix] = []
        prefix = start
        last = len(fresh) - 1
        for place, ids in enumerate(self.tokenizer.encode(fresh)):
            data = text.leading + ids if prefix is None else ids
            if place == last:
                data += text.trailing
            state = (prefix.chain if prefix is not None else chain).copy()
            keys = b"".join(state.grow(data, self._block_tokens))
            before = prefix.tokens if prefix is not None else 0
            prefix = Prefix(state, keys, before + len(data) // TOKEN_BYTES, prefix)
            grown.append(prefix)
        return grown


def _decoded(piece: bytes) -> str:
    return piece.decode("utf-8", "surrogatepass")


def _many_messages(body: Mapping[str, Any]) -> bool:
    """Whether rendering takes long however short the messages are."""
    given = body.get("messages", body.get("input"))
    return isinstance(given, list) and len(given) > _MESSAGES_INLINE


def _truncated(ids: Sequence[int], body: Mapping[str, Any]) -> Sequence[int]:
    """The engine keeps the end of a prompt it is told to cut, or its head where the client asks for that."""
    limit = truncation(body)
    if limit is None or limit >= len(ids):
        return ids
    return ids[:limit] if body.get("truncation_side") == "right" else ids[-limit:]
