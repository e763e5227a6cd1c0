"""From a request body to its prompt's length and block keys, as exactly as the engine makes them.

    LocalReader     renders and tokenizes here: exact when the parity check says so
    ReplicaReader   asks a replica's `/tokenize`
    TextReader      keys over the text's bytes, four to a token: approximate, for want of a tokenizer

The rendered text is cut before one safe special token; pieces seen before are not tokenized or hashed again, so a
conversation's next turn costs its new text alone. The one rule: no body makes a request fail here; what can't be read
is a `Prompt` without blocks that says why. Not here: loading (`router.readers`).
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from policies.blocks import TOKEN_BYTES, Chain, hittable_blocks, packed
from router.chat import Conversation, NotText, conversation, from_messages, from_responses
from router.templates import ChatTemplate, TemplateError
from router.tokenizers import Tokenizer, TokenizerError

_log = logging.getLogger("router.prompts")

_LONGEST_TEXT = 32 * 1024 * 1024  # characters; more is served, but by load
_BYTES_PER_TOKEN = 4  # of English text, roughly; for prompts that can't be tokenized

POOLING = frozenset(
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


@dataclass(frozen=True, slots=True)
class Prompt:
    """What placing a request needs to know of its prompt."""

    tokens: int
    """Exact, or estimated from the text when `basis` is not `exact`."""
    blocks: tuple[bytes, ...]
    """Keys of the full blocks that may hit; empty when there is no prefix information."""
    basis: str
    """`exact`, `approximate` or `none`."""
    reason: str = ""


class PromptReader(Protocol):
    """Reads the prompts of one model."""

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt: ...

    def describe(self) -> str:
        """One line for people: how prompts are read."""
        ...


@dataclass(slots=True)
class _Seen:
    """A prefix of rendered text that was tokenized before."""

    chain: Chain
    keys: tuple[bytes, ...]
    """Keys of the blocks its last piece completed."""
    tokens: int
    parent: "_Seen | None"


class PrefixCache:
    """Text prefixes already tokenized and hashed, least recently used first out, bounded in bytes."""

    _ENTRY_BYTES = 600
    _KEY_BYTES = 80

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._size_bytes = 0
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._seen)} prefixes, {self._size_bytes} of {self._capacity_bytes} bytes>"

    def longest(self, names: Sequence[bytes]) -> tuple[int, _Seen | None]:
        """How many of the pieces so named were seen together, and what is known of them; they become youngest."""
        for count in range(len(names), 0, -1):
            seen = self._seen.get(names[count - 1])
            if seen is not None:
                for name in reversed(names[:count]):
                    if name in self._seen:
                        self._seen.move_to_end(name)
                return count, seen
        return 0, None

    def add(self, name: bytes, seen: _Seen) -> None:
        if name in self._seen:
            return
        self._seen[name] = seen
        self._size_bytes += self._ENTRY_BYTES + self._KEY_BYTES * len(seen.keys)
        while self._size_bytes > self._capacity_bytes:
            _, oldest = self._seen.popitem(last=False)
            self._size_bytes -= self._ENTRY_BYTES + self._KEY_BYTES * len(oldest.keys)


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
        self._block_tokens = block_tokens
        self._cache = PrefixCache(cache_bytes)
        self._executor = executor
        self._source = source
        self._takes_parts = template is not None and template.takes_parts
        self._knows_developer = template is not None and "developer" in template.source
        self._cut = self._chosen_cut()
        self.doubt = ""
        """Why these ids may differ from the engine's, where a comparison found that they do."""
        tokenizer.encode(["warm up: the first call of an engine is its slowest"])

    def describe(self) -> str:
        cached = f"cut before {self._cut!r}" if self._cut else "no safe cut, whole prompts"
        return f"{self._source or 'local'} ({self.tokenizer.engine}, {cached})"

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:
        try:
            ids = _given_ids(route, body)
            if ids is not None:
                return self._prompt(len(ids), chain.copy().grow(packed(ids), self._block_tokens))
            text, prefix, cut_short = self._text(route, body)
            if len(text) > _LONGEST_TEXT:
                return Prompt(len(text) // _BYTES_PER_TOKEN, (), "none", "the prompt is too long to tokenize")
            tokens, keys = await self._tokenized(text, prefix, chain)
        except (NotText, TemplateError, TokenizerError, OverflowError) as error:
            return Prompt(_estimated(body), (), "none", str(error))
        limit = body.get("truncate_prompt_tokens")
        if isinstance(limit, int) and not isinstance(limit, bool) and 0 <= limit < tokens:
            return Prompt(limit, (), "none", "truncate_prompt_tokens cuts the prompt's head off")
        if route in POOLING:
            return Prompt(tokens, (), "none", "pooling requests can't read the prefix cache")
        if cut_short:
            return Prompt(tokens, tuple(keys), "approximate", cut_short)
        return self._prompt(tokens, keys)

    def token_ids(self, route: str, body: Mapping[str, Any]) -> list[int]:
        """The whole prompt's ids, past every cache. Raises `NotText`, `TemplateError` or `TokenizerError`."""
        ids = _given_ids(route, body)
        if ids is not None:
            return list(ids)
        text, prefix, _ = self._text(route, body)
        return [*prefix, *memoryview(self.tokenizer.encode([text])[0]).cast("I")]

    # -- text ------------------------------------------------------------------------------------------------------

    def _text(self, route: str, body: Mapping[str, Any]) -> tuple[str, tuple[int, ...], str]:
        """The rendered text, the ids that go before it, and why it was cut short (empty when it was not)."""
        if route == "/v1/messages" or route == "/v1/messages/count_tokens":
            return self._rendered(from_messages(body))
        if route == "/v1/responses":
            return self._rendered(from_responses(body))
        if "messages" in body:
            return self._rendered(body)
        text = _plain_text(body)
        prefix = () if body.get("add_special_tokens") is False else self.tokenizer.special_prefix
        return text, prefix, ""

    def _rendered(self, body: Mapping[str, Any]) -> tuple[str, tuple[int, ...], str]:
        if self.template is None:
            raise NotText("the tokenizer has no chat template")
        if body.get("chat_template"):
            raise NotText("the request brings its own chat template")
        asked = conversation(body, takes_parts=self._takes_parts, knows_developer=self._knows_developer)
        text = self.template.render(
            asked.messages,
            asked.tools,
            add_generation_prompt=asked.add_generation_prompt and not asked.continue_final_message,
            **asked.variables,
        )
        if asked.continue_final_message:
            text = _without_end_of_turn(text, asked)
        if asked.cut_short:
            text = text[: _end_of_last_text(text, asked)]
        prefix = self.tokenizer.special_prefix if asked.add_special_tokens else ()
        return text, prefix, asked.cut_short

    def _chosen_cut(self) -> str:
        """The safe special token that cuts a conversation into the most pieces; empty when there is none."""
        safe = self.tokenizer.safe_cuts()
        if self.template is None or not safe:
            return ""
        probe = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant", "user")]
        if self._takes_parts:
            probe = [{**message, "content": [{"type": "text", "text": "x"}]} for message in probe]  # type: ignore[dict-item]
        try:
            text = self.template.render(probe)
        except TemplateError:
            return ""
        best = max(safe, key=text.count)
        return best if text.count(best) else ""

    # -- tokens and keys -------------------------------------------------------------------------------------------

    async def _tokenized(self, text: str, prefix: tuple[int, ...], chain: Chain) -> tuple[int, list[bytes]]:
        pieces = _pieces(text, self._cut)
        names = _names(pieces[:-1], chain, prefix)
        known, seen = self._cache.longest(names)
        start = seen.chain if seen is not None else chain
        fresh = pieces[known:]
        leading = packed(prefix) if seen is None else b""
        if sum(map(len, fresh)) <= self.tokenizer.inline_bytes:
            grown = self._grown(start, leading, fresh)
        else:
            loop = asyncio.get_running_loop()
            grown = await loop.run_in_executor(self._executor, self._grown, start, leading, fresh)
        for name, (piece_chain, keys, tokens) in zip(names[known:], grown[:-1], strict=True):
            seen = _Seen(piece_chain, tuple(keys), tokens + (seen.tokens if seen is not None else 0), seen)
            self._cache.add(name, seen)
        _, keys, tokens = grown[-1]
        runs = [keys]
        total = tokens + (seen.tokens if seen is not None else 0)
        while seen is not None:
            runs.append(list(seen.keys))
            seen = seen.parent
        return total, [key for run in reversed(runs) for key in run]

    def _grown(self, start: Chain, leading: bytes, pieces: Sequence[str]) -> list[tuple[Chain, list[bytes], int]]:
        """Each piece's chain after it, the keys of the blocks it completed, and its tokens. Touches no shared state."""
        chain = start.copy()
        grown = []
        for ids in self.tokenizer.encode(pieces):
            data = leading + ids if leading else ids
            leading = b""
            keys = chain.grow(data, self._block_tokens)
            grown.append((chain.copy(), keys, len(data) // TOKEN_BYTES))
        return grown

    def _prompt(self, tokens: int, keys: list[bytes]) -> Prompt:
        blocks = tuple(keys[: hittable_blocks(tokens, self._block_tokens)])
        return Prompt(tokens, blocks, "approximate" if self.doubt else "exact", self.doubt)


def _pieces(text: str, cut: str) -> list[str]:
    if not cut:
        return [text]
    first, *rest = text.split(cut)
    pieces = [cut + piece for piece in rest]
    return [first, *pieces] if first or not pieces else pieces


def _names(pieces: Sequence[str], chain: Chain, prefix: tuple[int, ...]) -> list[bytes]:
    """Names of the growing prefixes of a text: a running SHA-256 seeded by the chain, so that no two chains share."""
    digest = hashlib.sha256(chain.identity() + packed(prefix))
    names = []
    for piece in pieces:
        data = piece.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
        names.append(digest.digest()[:16])
    return names


def _given_ids(route: str, body: Mapping[str, Any]) -> Sequence[int] | None:
    """Token ids the client sent itself; of a batch, the first prompt's."""
    transfer = body.get("kv_transfer_params")
    if isinstance(transfer, Mapping) and _are_ids(transfer.get("prompt_token_ids")):
        return list(transfer["prompt_token_ids"])
    prompt = body.get("prompt" if route not in POOLING else "input")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        prompt = prompt[0]
    return prompt if _are_ids(prompt) else None


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _plain_text(body: Mapping[str, Any]) -> str:
    for name in ("prompt", "input", "text", "query"):
        value = body.get(name)
        if isinstance(value, list) and value and isinstance(value[0], str):
            value = value[0]
        if isinstance(value, str) and value:
            return value
    raise NotText("the body holds no prompt")


def _without_end_of_turn(text: str, asked: Conversation) -> str:
    """Open the last turn again (`transformers` does the same): cut the text right after the last message's content."""
    return text[: _end_of_last_text(text, asked)]


def _end_of_last_text(text: str, asked: Conversation) -> int:
    content = asked.messages[-1]["content"]
    if isinstance(content, list):
        content = content[-1]["text"] if content else ""
    wanted = content.strip() if isinstance(content, str) else ""
    position = text.rfind(wanted) if wanted else -1
    if position < 0:
        raise NotText("the last message is not in the rendered text")
    if asked.continue_final_message and text.startswith(content, position):
        return position + len(content)
    return position + len(wanted)


def _estimated(body: Mapping[str, Any]) -> int:
    """Tokens of a prompt nobody could read, from the length of its JSON."""
    given = {name: body[name] for name in ("messages", "prompt", "input", "system", "tools") if name in body}
    try:
        return len(orjson.dumps(given)) // _BYTES_PER_TOKEN
    except (TypeError, orjson.JSONEncodeError):
        return 0


class ReplicaReader:
    """Tokenizes through a replica, for models whose tokenizer is not at hand. One round trip per new prompt."""

    _REMEMBERED = 4_096

    def __init__(
        self,
        ask: Callable[[str, Any], Awaitable[Any]],
        *,
        block_tokens: int,
        timeout_s: float = 2.0,
        at_once: int = 8,
    ) -> None:
        """`ask(path, json)` posts to some healthy replica and returns its JSON; it may raise anything."""
        self._ask = ask
        self._block_tokens = block_tokens
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(at_once)
        self._text = TextReader(block_tokens=block_tokens)
        self._remembered: OrderedDict[bytes, Prompt] = OrderedDict()

    def describe(self) -> str:
        return "through a replica's /tokenize"

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:
        ids = _given_ids(route, body)
        if ids is None:
            name = hashlib.sha256(chain.identity() + orjson.dumps([route, *body.items()])).digest()
            found = self._remembered.get(name)
            if found is not None:
                return found
            try:
                async with asyncio.timeout(self._timeout_s), self._slots:
                    answer = await self._ask("/tokenize", _tokenize_body(route, body))
                ids = answer["tokens"]
                if not _are_ids(ids):
                    raise ValueError("no token ids")
            except (NotText, TimeoutError, OSError, LookupError, TypeError, ValueError) as error:
                approximate = await self._text.read(route, body, chain)
                return Prompt(approximate.tokens, (), "none", f"/tokenize did not answer: {type(error).__name__}")
            prompt = self._prompt(route, ids, chain)
            self._remembered[name] = prompt
            if len(self._remembered) > self._REMEMBERED:
                self._remembered.popitem(last=False)
            return prompt
        return self._prompt(route, ids, chain)

    def _prompt(self, route: str, ids: Sequence[int], chain: Chain) -> Prompt:
        if route in POOLING:
            return Prompt(len(ids), (), "none", "pooling requests can't read the prefix cache")
        try:
            keys = chain.copy().grow(packed(ids), self._block_tokens)
        except OverflowError as error:
            return Prompt(len(ids), (), "none", str(error))
        return Prompt(len(ids), tuple(keys[: hittable_blocks(len(ids), self._block_tokens)]), "exact")


def _tokenize_body(route: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The `/tokenize` request that gives the same ids as `body` sent to `route`."""
    if route in ("/v1/messages", "/v1/messages/count_tokens"):
        chat = from_messages(body)
    elif route == "/v1/responses":
        chat = from_responses(body)
    else:
        chat = dict(body)
    if "messages" not in chat:
        made: dict[str, Any] = {"prompt": _plain_text(body)}
        names: tuple[str, ...] = ("add_special_tokens",)
    else:
        made = {"messages": chat["messages"]}
        names = (
            "add_generation_prompt",
            "continue_final_message",
            "add_special_tokens",
            "chat_template_kwargs",
            "tools",
        )
    made.update({name: chat[name] for name in names if chat.get(name) is not None})
    if isinstance(body.get("model"), str):
        made["model"] = body["model"]
    return made


class TextReader:
    """Keys over the text itself, four bytes standing for a token: what is left when nothing can tokenize."""

    def __init__(self, *, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def describe(self) -> str:
        return "by text, four bytes to a token (approximate)"

    async def read(self, route: str, body: Mapping[str, Any], chain: Chain) -> Prompt:
        ids = _given_ids(route, body)
        if ids is not None:
            try:
                data = packed(ids)
            except OverflowError as error:
                return Prompt(len(ids), (), "none", str(error))
        else:
            given = [body.get(name) for name in ("tools", "system", "instructions", "messages", "prompt", "input")]
            try:
                data = orjson.dumps([part for part in given if part is not None])
            except (TypeError, orjson.JSONEncodeError):
                return Prompt(0, (), "none", "the body holds no text")
        tokens = len(data) // TOKEN_BYTES
        if route in POOLING or len(data) > _LONGEST_TEXT:
            return Prompt(tokens, (), "none", "pooling or very long: placed by load")
        keys = chain.copy().grow(data, self._block_tokens)
        return Prompt(
            tokens, tuple(keys[: hittable_blocks(tokens, self._block_tokens)]), "approximate", "text, not tokens"
        )
