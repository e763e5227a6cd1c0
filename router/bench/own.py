"""The user's own prompts: a file of request bodies, or a workload that was read from a trace.

A trace holds no text, so its blocks become tokens drawn from their keys: equal beginnings stay equal. The one rule: a
body changes by the mark at its front and by what a measurement needs (streaming, usage), nothing else; a file that
can't be used is told by its line, never by its text. Not here: reading traces, which the command line passes in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import orjson

from router.bench.groups import CHAT, COMPLETIONS, Prompt, Shape, asked, digest_of, mark_ids, mark_of
from router.errors import RouterError

_SPAN = 3700
"""Ids 300 to 3999, as for made prompts."""
_PATHS = (CHAT, COMPLETIONS, "/v1/messages", "/v1/responses")


class Arrival(Protocol):
    """One request of a trace. `keys` are of its full blocks, answer included; equal as far as prompts are equal."""

    @property
    def time_s(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def keys(self) -> Sequence[bytes]: ...
    @property
    def user(self) -> str | None: ...
    @property
    def session(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Bodies:
    """Bodies of a file, each asked once. `shape` gives the model that replaces theirs, if any, and added members."""

    name: str
    bodies: tuple[tuple[str, Mapping[str, Any]], ...]
    """Path and parsed body."""
    shape: Shape
    digest: str
    max_tokens: int | None = None
    """Replaces what the bodies say."""
    as_is: bool = False
    """Whether prompts go without a mark; what is cached of them before the run is then not known."""
    times_s: Sequence[float] | None = None

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def prompt(self, number: int, mark: str) -> Prompt:
        path, given = self.bodies[number]
        body = dict(given) if self.as_is else marked(given, mark)
        body["stream"] = True
        if path in (CHAT, COMPLETIONS):
            body["stream_options"] = {"include_usage": True}
        body |= {"model": self.shape.model} if self.shape.model else {}
        if self.max_tokens is not None:
            body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = self.max_tokens
        body |= self.shape.extra or {}
        return Prompt(path, orjson.dumps(body), {})


@dataclass(frozen=True, slots=True)
class Traced:
    """Requests of a trace, as token ids."""

    name: str
    arrivals: tuple[Arrival, ...]
    block_tokens: int
    shape: Shape
    max_tokens: int | None = None

    @property
    def requests(self) -> int:
        return len(self.arrivals)

    @property
    def times_s(self) -> Sequence[float]:
        start_s = self.arrivals[0].time_s
        return [arrival.time_s - start_s for arrival in self.arrivals]

    @property
    def digest(self) -> str:
        mark, anyones = mark_of("", "digest"), replace(self, shape=replace(self.shape, model=""))
        return digest_of(b"".join(anyones.prompt(number, mark).body for number in range(min(100, self.requests))))

    def prompt(self, number: int, mark: str) -> Prompt:
        arrival, block_tokens = self.arrivals[number], self.block_tokens
        full, rest = divmod(arrival.prompt_tokens, block_tokens)
        keys = arrival.keys[:full]
        ids = [token for key in keys for token in _drawn(key, block_tokens)]
        # Past the blocks that are told nothing is shared.
        ids += _drawn(b"%d rest" % number, rest + block_tokens * (full - len(keys)))
        ids[: len(mark_ids(mark))] = mark_ids(mark)[: len(ids)]
        prompt = asked(COMPLETIONS, {"prompt": ids}, self.shape, self.max_tokens or max(1, arrival.output_tokens))
        who = (("X-User-Id", arrival.user), ("X-Session-Id", arrival.session))
        return replace(prompt, headers={name: value for name, value in who if value})


def read_bodies(file: Path, shape: Shape, model: str, *, most: int, max_tokens: int | None, as_is: bool) -> Bodies:
    """The first `most` bodies of a JSONL file: requests, or lines of an OpenAI batch. Raises `RouterError`.

    `model` is for bodies that name none; a model in `shape` replaces what they name.
    """
    found = []
    whole = b""
    with file.open("rb") as lines:
        for place, line in enumerate(islice((line for line in lines if line.strip()), most), 1):
            try:
                path, body = _read(line)
                if not as_is:
                    marked(body, "")
            except ValueError as error:
                raise RouterError(f"{file}, request {place}: {error}") from None
            found.append((path, {"model": model, **body}))
            whole += line
    if not found:
        raise RouterError(f"{file} holds no request")
    return Bodies(file.name, tuple(found), shape, digest_of(whole), max_tokens, as_is)


def traced(
    name: str, arrivals: Iterable[Arrival], block_tokens: int, shape: Shape, *, most: int, max_tokens: int | None
) -> Traced:
    """The first `most` requests of a trace; those without a prompt are left out."""
    kept = tuple(islice((arrival for arrival in arrivals if arrival.prompt_tokens > 0), most))
    if not kept:
        raise RouterError(f"{name} holds no request with a prompt")
    return Traced(name, kept, block_tokens, shape, max_tokens)


def marked(body: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """The body with the mark in front of its prompt. Raises `ValueError` where there is no text to put it before."""
    body = dict(body)
    for name in ("system", "messages", "prompt", "input"):
        if body.get(name) and (done := _before(body[name], mark)) is not None:
            body[name] = done
            return body
    raise ValueError("has no text in messages, prompt or input to mark; --as-is sends it unmarked")


def _before(value: Any, mark: str) -> Any:
    """The value with the mark before its first text or token; None when it has neither."""
    if isinstance(value, str):
        return f"{mark} {value}"
    if isinstance(value, Mapping):
        for name in ("content", "text"):
            if (done := _before(value.get(name), mark)) is not None:
                return {**value, name: done}
    if isinstance(value, list) and value and all(isinstance(token, int) for token in value):
        return [*mark_ids(mark), *value]
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        return [_before(each, mark) for each in value]
    if isinstance(value, list):
        for place, part in enumerate(value):
            if (done := _before(part, mark)) is not None:
                return [*value[:place], done, *value[place + 1 :]]
    return None


def _read(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        told = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error.msg})") from None
    if not isinstance(told, dict):
        raise ValueError("is no JSON object")
    path, body = told.get("url", ""), told.get("body", told)
    if not isinstance(body, dict):
        raise ValueError("has a body that is no object")
    if not path:
        path = CHAT if "messages" in body else COMPLETIONS if "prompt" in body else "/v1/responses"
    if path not in _PATHS:
        raise ValueError(f"asks a path that generates nothing; only {', '.join(_PATHS)} can be timed")
    return path, body


@lru_cache(maxsize=65_536)
def _drawn(key: bytes, count: int) -> tuple[int, ...]:
    """Token ids that follow from a key."""
    ids: list[int] = []
    part = 0
    while len(ids) < count:
        drawn = blake2b(key + part.to_bytes(4, "little")).digest()
        ids += [300 + int.from_bytes(drawn[at : at + 2], "little") % _SPAN for at in range(0, 64, 2)]
        part += 1
    return tuple(ids[:count])
