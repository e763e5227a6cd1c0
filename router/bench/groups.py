"""What is asked: prompts behind a few shared prefixes, and as many of the same length behind prefixes of their own.

The one rule: everything follows from the seed but the mark, which stands at the very front of a prompt and decides what
it shares a cache with: a new mark makes a prompt cold, the same mark once more makes it warm. Marks are equally long,
so that prompts under two marks cost the same. Not here: the user's own prompts (`own`).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any, Literal, Protocol

import orjson

Endpoint = Literal["chat", "completions"]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MARK_TOKENS = 6
_LEAST_ID, _END_ID = 300, 4000
"""Token ids every model of today has, past the bytes and special tokens at the start of most vocabularies."""
_WORDS = tuple(
    re.findall(
        r"\w+",
        """the of and to in is that for it as was with be by on not he his but at are this have from or had an they one
        you were her all she there would their we him been has when who will more no if out so said what up its about
        into than them can only other new some could time these two may then do first any my now such like our over man
        me even most made after also did many before must through years where much your way well down should because""",
    )
)
"""Words that are one token, with the space before them, to nearly every tokenizer."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request but for its time."""

    path: str
    body: bytes
    headers: Mapping[str, str]


class Group(Protocol):
    """Prompts of one kind, by number."""

    @property
    def name(self) -> str: ...
    @property
    def requests(self) -> int | None:
        """How many there are; None is as many as wanted."""

    @property
    def times_s(self) -> Sequence[float] | None:
        """When they come by themselves; None where a rate says so."""

    @property
    def digest(self) -> str:
        """What tells these prompts from others, mark and model apart."""

    def prompt(self, number: int, mark: str) -> Prompt: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """What all made prompts have in common."""

    model: str
    endpoint: Endpoint = "chat"
    prefix_tokens: int = 2000
    question_tokens: int = 100
    max_tokens: int = 32
    extra: Mapping[str, Any] | None = None
    """Members added to every body."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Made:
    """Prompts of random words or tokens: a prefix, then a question nobody else asks."""

    name: str
    shape: Shape
    prefixes: int | None
    """How many prefixes are taken in turn; None gives every request its own."""
    requests: int | None = None
    times_s: Sequence[float] | None = None

    @property
    def digest(self) -> str:
        anyones = replace(self, shape=replace(self.shape, model=""))
        return digest_of(b"".join(anyones.prompt(number, mark_of("", "digest")).body for number in range(2)))

    def prompt(self, number: int, mark: str) -> Prompt:
        shape = self.shape
        place = number if self.prefixes is None else number % self.prefixes
        prefix, question = f"{shape.seed} {self.name} prefix {place}", f"{shape.seed} {self.name} question {number}"
        if shape.endpoint == "completions":
            ids = [*mark_ids(mark), *_ids(prefix, max(0, shape.prefix_tokens - MARK_TOKENS))]
            return asked(COMPLETIONS, {"prompt": [*ids, *_ids(question, shape.question_tokens)]}, shape)
        messages = [
            {"role": "system", "content": f"{mark} {_text(prefix, shape.prefix_tokens)}"},
            {"role": "user", "content": _text(question, shape.question_tokens)},
        ]
        return asked(CHAT, {"messages": messages}, shape)


def asked(path: str, prompt: Mapping[str, Any], shape: Shape, max_tokens: int | None = None) -> Prompt:
    """The request of a prompt: streamed, with usage at its end."""
    body = {
        "model": shape.model,
        **prompt,
        "max_tokens": max_tokens or shape.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(shape.extra or {}),
    }
    return Prompt(path, orjson.dumps(body), {})


def mark_of(run: str, *words: str) -> str:
    """The mark of one part of one run: 16 hexadecimal digits. `run` is what no other run has."""
    return hashlib.blake2b("\0".join((run, *words)).encode(), digest_size=8).hexdigest()


def mark_ids(mark: str) -> list[int]:
    return _ids(f"mark {mark}", MARK_TOKENS)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _ids(seed: str, count: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(_LEAST_ID, _END_ID) for _ in range(count)]


@lru_cache(maxsize=256)
def _text(seed: str, count: int) -> str:
    """About `count` tokens."""
    return " ".join(Random(seed).choices(_WORDS, k=count))
