"""Which reader a model's prompts get, from what is at hand.

The order: the folder or name the operator gave, the model's own `root` when its files are at hand, a replica's
`/tokenize`, and at worst the text itself. The one rule: nothing is downloaded; a name is looked up once, in folders and
in the Hugging Face cache of this machine. Not here: reading (`router.prompts`), comparing (`router.parity`).
"""

import os
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.parity import Ask as Ask
from router.parity import Parity as Parity
from router.prompt_fallbacks import Unread
from router.prompts import LocalReader, PromptReader, ReplicaReader, TextReader
from router.templates import ChatTemplate, TemplateError, special_tokens
from router.tokenizers import TokenizerError, found_folder, load

TINY: Final = Path(__file__).with_name("data") / "tiny"
"""The tokenizer that ships with the router: for the emulator, the demo and the tests."""


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

    `where` is `auto`, `local`, `replica`, `text` or `none`. Raises `TokenizerError` or `TemplateError` when the
    operator named a tokenizer that can't be used; what the router finds on its own is passed over with the reason.
    """
    if where == "none":
        return Picked(Unread(), "tokenizer.where is none")
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
        return Picked(ReplicaReader(ask, block_tokens=block_tokens, cache_bytes=cache_bytes), reason)
    return Picked(TextReader(block_tokens=block_tokens), reason)
