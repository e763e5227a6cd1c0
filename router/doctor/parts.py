"""A request body as the parts its prompt is made of, in prompt order, each with its path in the client's own terms.

    before all text   model, cache_salt, chat_template and the like: what changes every block when it changes
    parts             tools, documents, system, messages; of a completion, the prompt

The one rule: a part's text is the client's, unchanged, so that an offset in it is an offset in the body's member. Not
here: what a template makes of it (`router.prompts`); parts stand in the order most templates use.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import xxhash
from msgspec import Struct

from router.chat import part_text
from router.prompt_bodies import are_ids

Body = Mapping[str, Any]

ROOTS = ("model", "cache_salt", "chat_template", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt")
"""Members that stand before all text: they choose the template or the chain every block hangs on."""


class Part(Struct, frozen=True):
    """One stretch of a prompt."""

    path: str
    """Where it stands in the body: `messages[0].content`, `tools[2]`."""
    role: str
    text: str
    message: int | None = None
    """Index of the message it belongs to."""
    opaque: bool = False
    """Something else than text, such as an image; `text` is its digest."""


class Asked(Struct):
    """One request as the doctor takes it."""

    route: str
    body: Body
    roots: tuple[tuple[str, str], ...]
    parts: list[Part]
    chars: int
    time_s: float | None = None


def asked(route: str, body: Body, time_s: float | None = None) -> Asked:
    """Read a body. One that holds no prompt has no parts."""
    parts = [part for part in _parts(body) if part.text]
    roots = tuple((name, _shown(body[name])) for name in ROOTS if body.get(name) is not None)
    return Asked(route, body, roots, parts, sum([len(part.text) for part in parts]), time_s)


def _parts(body: Body) -> Iterator[Part]:
    for name in ("tools", "functions", "documents"):
        given = body.get(name)
        if isinstance(given, list):
            role = "documents" if name == "documents" else "tools"
            for place, item in enumerate(given):
                yield Part(f"{name}[{place}]", role, item if isinstance(item, str) else _json(item))
    for name in ("system", "instructions"):
        yield from _content(body.get(name), name, "system", None)
    for name in ("messages", "input"):
        given = body.get(name)
        if isinstance(given, list) and any(isinstance(item, Mapping) for item in given):
            yield from _messages(given, name)
            return
    for name in ("prompt", "input", "text"):
        given = body.get(name)
        if isinstance(given, str):
            yield Part(name, "", given)
        elif isinstance(given, list) and given and isinstance(given[0], str):
            yield Part(f"{name}[0]", "", given[0])
        elif isinstance(given, list) and are_ids(given):
            yield Part(name, "", " ".join(map(str, given)))
        else:
            continue
        return


def _messages(given: list[Any], name: str) -> Iterator[Part]:
    for place, message in enumerate(given):
        if not isinstance(message, Mapping):
            continue
        path, role = f"{name}[{place}]", str(message.get("role") or message.get("type") or "")
        for member in ("reasoning", "reasoning_content"):
            if isinstance(message.get(member), str):
                yield Part(f"{path}.{member}", role, message[member], place)
                break
        yield from _content(message.get("content"), f"{path}.content", role, place)
        for member in ("tool_calls", "function_call", "arguments", "output"):
            value = message.get(member)
            if value:
                yield Part(f"{path}.{member}", role, value if isinstance(value, str) else _json(value), place)


def _content(content: Any, path: str, role: str, place: int | None) -> Iterator[Part]:
    if isinstance(content, str):
        yield Part(path, role, content, place)
    elif isinstance(content, list):
        for number, part in enumerate(content):
            text = part if isinstance(part, str) else part_text(part)
            if text is not None:
                inner = f"{path}[{number}]" if isinstance(part, str) else f"{path}[{number}].{_member(part)}"
                yield Part(inner, role, text, place)
            else:
                yield Part(
                    f"{path}[{number}]", role, f"{xxhash.xxh3_64_intdigest(_json(part).encode()):016x}", place, True
                )


def _member(part: Body) -> str:
    return next((name for name in ("text", "refusal", "thinking") if name in part), "text")


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def canonical(text: str) -> str:
    """JSON text with its members in order; other text as it is."""
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return text


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)
