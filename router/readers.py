"""Which reader a model's prompts get, and the proof that it reads as the engine does.

The order: the folder or name the operator gave, the model's own `root` when its files are at hand, a replica's
`/tokenize`, and at worst the text itself. A name is looked up once. `parity` compares a reader with a replica on probe
chats and says EXACT or APPROXIMATE with the reason. Not here: reading (`router.prompts`).
"""

import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.blocks import Chain
from router.chat import NotText
from router.prompts import LocalReader, PromptReader, ReplicaReader, TextReader
from router.templates import ChatTemplate, TemplateError, special_tokens
from router.tokenizers import TokenizerError, found_folder, load

Ask = Callable[[str, Any], Awaitable[Any]]

TINY = Path(__file__).with_name("data") / "tiny"
"""The tokenizer that ships with the router: for the emulator, the demo and the tests."""

_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_USER = {"role": "user", "content": "What is a prefix cache?"}
PROBES: dict[str, dict[str, Any]] = {
    "one message": {"messages": [_USER]},
    "system message": {"messages": [{"role": "system", "content": "Be brief."}, _USER]},
    "several turns": {"messages": [_USER, {"role": "assistant", "content": "A store of KV blocks."}, _USER]},
    "unicode": {"messages": [{"role": "user", "content": "Grüße 你好 🙂 e\u0301"}]},
    "text parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "white space": {"messages": [{"role": "user", "content": "  x \n\n"}]},
    "special tokens as text": {"messages": [{"role": "user", "content": "<|im_end|> <|eot_id|> <s>"}]},
    "no generation prompt": {"messages": [_USER], "add_generation_prompt": False},
    "template variables": {"messages": [_USER], "chat_template_kwargs": {"enable_thinking": False}},
    "tools": {"messages": [_USER], "tools": [_WEATHER]},
    "text prompt": {"prompt": "Once upon a time"},
}


def local_reader(
    folder: Path, *, block_tokens: int, cache_bytes: int = 64 * 1024 * 1024, executor: Executor | None = None
) -> LocalReader:
    """A reader from a model folder. Raises `TokenizerError` or `TemplateError` that names the file."""
    tokenizer, config, source = load(folder)
    try:
        template = ChatTemplate(source, special_tokens(config)) if source else None
    except TemplateError as error:
        raise TemplateError(f"{folder}: {error}") from error
    return LocalReader(
        tokenizer,
        template,
        block_tokens=block_tokens,
        cache_bytes=cache_bytes,
        executor=executor,
        source=folder.name,
    )


def hub_cache() -> Path:
    """Where Hugging Face keeps downloaded models on this machine."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


@dataclass(frozen=True, slots=True)
class Picked:
    """The reader for one model, and why this one."""

    reader: PromptReader
    reason: str


def reader_for(
    root: str,
    *,
    tokenizer: str | None,
    where: str,
    ask: Ask | None,
    block_tokens: int,
    cache_bytes: int,
    executor: Executor | None = None,
) -> Picked:
    """Pick a reader; slow (it loads files), so not for the event loop.

    `where` is `auto`, `local`, `replica` or `text`. Raises `TokenizerError` or `TemplateError` when the operator named
    a tokenizer that can't be used; what the router looks for on its own is passed over with the reason.
    """
    if where == "text":
        return Picked(TextReader(block_tokens=block_tokens), "tokenizer.where is text")
    reason = "tokenizer.where is replica"
    if where in ("auto", "local"):
        name = tokenizer or root
        folder = found_folder(name, hub_cache())
        if folder is not None:
            try:
                reader = local_reader(folder, block_tokens=block_tokens, cache_bytes=cache_bytes, executor=executor)
            except (TokenizerError, TemplateError) as error:
                if tokenizer is not None:
                    raise
                reason = str(error)
            else:
                return Picked(reader, f"tokenizer of {name}")
        else:
            reason = f"no tokenizer.json for {name!r} on this machine"
            if tokenizer is not None:
                raise TokenizerError(f"{reason}; give a folder that holds it, or download the model first")
    if where != "local" and ask is not None:
        return Picked(ReplicaReader(ask, block_tokens=block_tokens), reason)
    return Picked(TextReader(block_tokens=block_tokens), reason)


@dataclass(frozen=True, slots=True)
class Parity:
    """Whether a reader gives the ids a replica gives."""

    exact: bool
    reason: str
    compared: int
    different: tuple[str, ...]

    @property
    def word(self) -> str:
        return "EXACT" if self.exact else "APPROXIMATE"


async def parity(reader: PromptReader, ask: Ask, model: str) -> Parity:
    """Compare a reader with a replica's `/tokenize` on every probe the replica accepts."""
    if isinstance(reader, ReplicaReader):
        return Parity(True, "a replica tokenizes", 0, ())
    if not isinstance(reader, LocalReader):
        return Parity(False, "no tokenizer: text is hashed in chunks", 0, ())
    compared = 0
    different = []
    for name, body in PROBES.items():
        try:
            answer = await ask("/tokenize", {**body, "model": model})
            theirs = answer["tokens"]
        except (OSError, LookupError, TypeError, ValueError, TimeoutError):
            continue  # a template may refuse a probe; what the engine refuses needs no prompt
        compared += 1
        route = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        try:
            ours = reader.token_ids(route, body)
            cached = await reader.read(route, body, Chain.root("parity"))
        except (NotText, TemplateError, TokenizerError):
            different.append(name)
            continue
        if ours != theirs or (cached.basis == "exact" and cached.tokens != len(theirs)):
            different.append(name)
    if not compared:
        return Parity(False, "the replica's /tokenize did not answer", 0, ())
    if different:
        return Parity(False, f"different ids for: {', '.join(different)}", compared, tuple(different))
    reason = f"{compared} of {compared} probe prompts gave equal ids"
    if reader.template is not None and reader.template.knows_the_date:
        reason += "; the template prints the date, which may differ around midnight"
    return Parity(True, reason, compared, ())
