"""Text to token ids, exactly: Hugging Face `tokenizers` as the reference, `fastokens` when it proves equal at start-up.

Ids come packed as little-endian uint32 bytes, the form `policies.blocks` hashes. The one rule: the fast engine is used
only after a self-check on hard texts, and any failure of it falls back to the reference. Not here: templates, caches.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final

import tokenizers

from policies.blocks import packed

_log = logging.getLogger("router.tokenizers")

_PROBES = (
    "Hello, world! It's 3:45 pm; they'll've gone.",
    "  leading\t\ttabs \n\n\n and   spaces   \r\n",
    "Grüße 你好 🙂👩‍👩‍👧 é \u200b ﬁ ſ İ",
    "def f(x):\n    return {'a': x**2, \"b\": [1, 2.5e-3]}\n",
    "1234567890 0x1F 3.14159 1,000,000",
    "العربية עברית हिन्दी 日本語テキスト 한국어",
    "<|im_start|>user\n<|im_end|><|eot_id|><think></think>",
    "a" * 300 + " " * 70 + "\n" * 40,
    "",
)


_TOY_TOKENS: Final = 16 * 1024
"""A tokenizer that knows fewer tokens serves no real model."""


class TokenizerError(Exception):
    """A tokenizer can't be loaded, or refused a text."""


class Tokenizer:
    """One model's tokenizer. `encode` takes several texts at once and releases the interpreter lock meanwhile."""

    def __init__(self, definition: str) -> None:
        """`definition` is the text of a `tokenizer.json`. Raises `TokenizerError` when it can't be used."""
        try:
            self._reference: Any = tokenizers.Tokenizer.from_str(definition)
            described = json.loads(definition)
        except Exception as error:
            raise TokenizerError(f"tokenizer.json can't be loaded: {error}") from error
        self._reference.no_truncation()
        self._reference.no_padding()
        self.added: tuple[dict[str, Any], ...] = tuple(described.get("added_tokens") or ())
        self._normalizes = _normalizes(described.get("normalizer"))
        self.special_prefix, self.special_suffix = self._specials()
        self._fast, self.engine = self._checked_fast(definition)

    def _specials(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What `add_special_tokens` puts before and behind a text (BOS before, for the models that have one)."""
        bare = self._reference.encode("a", add_special_tokens=False).ids
        whole = self._reference.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
        return (), ()

    @property
    def inline_bytes(self) -> int:
        """How much text may be encoded on the event loop: a millisecond or two of work (measured with Qwen3's)."""
        return 64 * 1024 if self._fast is not None else 2 * 1024

    def _checked_fast(self, definition: str) -> tuple[Any | None, str]:
        try:
            import fastokens
        except ImportError:
            return None, "tokenizers"
        try:
            fast: Any = fastokens.Tokenizer.from_json_str(definition)
            texts = [*_PROBES, *(f"x {token.get('content')} x" for token in self.added[:64])]
            same = all(fast.encode_batch_flat([text])[0] == self._slow([text])[0] for text in texts)
        except BaseException as error:  # a Rust panic arrives as BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            _log.info("fastokens can't load this tokenizer (%s); using tokenizers", type(error).__name__)
            return None, "tokenizers"
        if not same:
            _log.warning("fastokens tokenizes differently from tokenizers here; using tokenizers")
            return None, "tokenizers"
        return fast, "fastokens"

    def encode_one(self, text: str) -> bytes:
        """Packed ids of a text, without special tokens. Raises `TokenizerError` for one that is not Unicode."""
        try:
            ids: bytes = self._fast.encode_batch_flat([text])[0] if self._fast is not None else self._slow([text])[0]
        except BaseException as error:
            raise _failure(error) from None
        return ids

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """The same of several texts."""
        if self._fast is not None and sum(map(len, texts)) <= self.inline_bytes:
            return [self.encode_one(text) for text in texts]
        try:
            if self._fast is None:
                return self._slow(texts)
            ids, offsets = self._fast.encode_batch_flat(list(texts))  # spread over threads
        except BaseException as error:
            raise _failure(error) from None
        ends = memoryview(offsets).cast("Q")
        return [ids[ends[i] * 4 : ends[i + 1] * 4] for i in range(len(texts))]

    def at_home(self) -> Iterator[None]:
        """Make the calling thread remember as many words as it ever will: about a millisecond of work for each item.

        fastokens (0.3.5) keeps a table of words for each thread and model. It doubles when it is three quarters full,
        up to 2^21 places of 32 bytes, and the last two times hold the thread for 20 to 100 ms. From then on it is
        emptied when it is full, in 10. So a thread that must not be held goes beyond the last doubling before.
        """
        if self._fast is None or self.vocabulary_size < _TOY_TOKENS:
            return
        for words in _new_words():
            self._fast.encode_batch_flat([words])
            yield

    def _slow(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self._reference.encode_batch_fast(list(texts), add_special_tokens=False)
        return [packed(encoding.ids) for encoding in encodings]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._reference.decode(list(ids), skip_special_tokens=skip_special_tokens))

    @property
    def vocabulary_size(self) -> int:
        return int(self._reference.get_vocab_size())

    def is_safe_cut(self, content: str) -> bool:
        """Whether a text may be cut before the added token `content` and its pieces encoded apart, with equal ids.

        Safe means: no stripping, not normalized, no white space around, inside no other added token, and no other added
        token ends with a beginning of it. Then the piece before a cut can't be read differently for what follows.
        """
        token = next((token for token in self.added if token.get("content") == content), None)
        if token is None or not content or content != content.strip():
            return False
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            return False
        if token.get("normalized") and self._normalizes:
            return False
        heads = tuple(content[:length] for length in range(1, len(content)))
        others = (str(other.get("content")) for other in self.added)
        return not any(other != content and (content in other or other.endswith(heads)) for other in others)

    def best_cut(self, probe: str) -> str:
        """The safe added token that cuts `probe`, a rendered conversation, into the most pieces; empty without one.

        The rule for safety is proved on paper; the probe is encoded both ways all the same before it is relied on.
        """
        counted = [(probe.count(str(token.get("content"))), str(token.get("content"))) for token in self.added]
        for count, content in sorted(counted, key=lambda pair: -pair[0]):
            if count and self.is_safe_cut(content):
                if b"".join(self.encode(pieces(probe, content))) == self.encode([probe])[0]:
                    return content
                _log.warning("cutting before %r changes this tokenizer's ids; prompts are tokenized whole", content)
        return ""


def _failure(error: BaseException) -> BaseException:
    """What an engine's error means; of another kind than these it is what it was."""
    if isinstance(error, UnicodeEncodeError | TypeError):
        return TokenizerError("the text holds lone surrogates, which are not Unicode")
    if type(error).__name__ == "PanicException":
        return TokenizerError("the tokenizer panicked on this text")
    return error


def pieces(text: str, cut: str) -> list[str]:
    """The text cut before each `cut`; one piece when `cut` is empty."""
    if not cut:
        return [text]
    first, *rest = text.split(cut)
    found = [cut + piece for piece in rest]
    return [first, *found] if first or not found else found


def _new_words() -> Iterator[str]:
    """808,496 words that hardly any tokenizer knows, in texts of 1,352: more than half of 3/4 * 2^21, less than all."""
    letters = ascii_lowercase
    for head in product(letters[:23], letters):
        yield " ".join(map("".join, product(("".join(head),), letters, letters, "jq")))


def _normalizes(normalizer: Any) -> bool:
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence":
        return any(map(_normalizes, normalizer.get("normalizers") or ()))
    return bool(normalizer)


def load(folder: Path) -> tuple[Tokenizer, dict[str, Any], str | None]:
    """The tokenizer of a model folder, its `tokenizer_config.json`, and its chat template if it has one.

    Raises `TokenizerError` that names the file.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer(path.read_text("utf-8"))
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror}") from error
    except (TokenizerError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: {error}") from error
    config = _json(folder / "tokenizer_config.json")
    template: object = config.get("chat_template")
    if (folder / "chat_template.jinja").exists():
        template = _text(folder / "chat_template.jinja")
    elif (folder / "chat_template.json").exists():
        template = _json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several named templates; the engine takes the one called default
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return tokenizer, config, template if isinstance(template, str) else None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: {error}") from error
    return found if isinstance(found, dict) else {}


def found_folder(name: str, cache: Path) -> Path | None:
    """The folder that holds `name`'s tokenizer: a path, or a snapshot in a Hugging Face cache. No downloads."""
    path = Path(name).expanduser()
    if (path / "tokenizer.json").exists():
        return path
    if path.name == "tokenizer.json" and path.exists():
        return path.parent
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    if not snapshots.is_dir():
        return None
    found = [folder for folder in snapshots.iterdir() if (folder / "tokenizer.json").exists()]
    main = cache / f"models--{name.replace('/', '--')}" / "refs" / "main"
    current = [folder for folder in found if main.is_file() and folder.name == main.read_text("utf-8").strip()]
    if current:
        return current[0]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)
