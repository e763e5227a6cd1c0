"""What would mend a breaker, done to a body: a line moved to the end, tools in order, a salt left out.

The one rule: an edit is made to measure what it would save; the router never sends it. Where nothing can be edited
(another model, a history that was cut), there is no edit and the loss is an upper bound. Not here: the replay.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Struct

from router.doctor.causes import Cause
from router.doctor.divergence import LISTS, Gap
from router.doctor.parts import Body

MOVED = frozenset(["timestamp", "date", "uuid", "request_id", "counter", "personal", "varying_text"])
END, PART = "end", "part"
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_LONGEST_SPAN = 20_000

_ADVICE = {
    "tool_order": "send the tools in one fixed order, by name for instance",
    "schema_key_order": "write the tools' JSON with sorted keys",
    "tools_changed": "send all tools in every request and restrict them with tool_choice; else put the rare ones last",
    "document_order": "put the documents in one fixed order, by id for instance",
    "documents_changed": "put the documents that most requests share first",
    "whitespace": "write this text the same way every time; trim and join it in one place",
    "template": "keep the template settings the same for all requests of this route",
    "model": "keep a conversation on one model; every model and adapter has a cache of its own",
    "salt": "use one cache_salt per tenant, not one per request",
    "image_first": "put the text that all requests share ahead of the image",
    "truncated_history": "cut the history rarely and by much (half of it, say), so that many turns share what is left",
    "edited_history": "append to the history, never rewrite what was sent",
}


class Edit(Struct, frozen=True):
    """How to mend one place."""

    kind: str
    path: str
    before: str
    after: str
    to: str = END
    """Where text is moved: behind the whole prompt, or behind the part it stands in."""

    def done(self, body: Body) -> Body:
        """The body as it would be, or itself where there is nothing to edit."""
        if self.kind in MOVED:
            return self._moved(body)
        made = _WHOLE.get(self.kind)
        if made is not None:
            return made(body)
        if self.kind == "whitespace":
            return _changed(body, self.path, lambda text: re.sub(r"\s+", " ", text).strip())
        if self.kind == "image_first":
            return _changed(body, re.sub(r"\[\d+\](?:\.\w+)?$", "", self.path), _texts_first)
        return body

    def _moved(self, body: Body) -> Body:
        cut: list[str] = []

        def without(text: Any) -> Any:
            found = self._span(text) if isinstance(text, str) else None
            if found is None:
                return text
            cut.append(text[found[0] : found[1]])
            return text[: found[0]] + text[found[1] :]

        edited = _changed(body, self.path, without)
        if not cut:
            return body
        if self.to == PART:
            return _changed(edited, self.path, lambda text: f"{text}\n{cut[0]}")
        return _appended(edited, cut[0])

    def _span(self, text: str) -> tuple[int, int] | None:
        start = text.find(self.before)
        if start < 0:
            return None
        start += len(self.before)
        if not self.after:
            return start, len(text)
        end = text.find(self.after, start, start + _LONGEST_SPAN)
        return (start, end) if end > start else None


def edits_of(gap: Gap, cause: Cause) -> tuple[Edit, ...]:
    """The ways to mend a gap, to be tried by replay: what is new in every request belongs behind everything else, what
    a conversation keeps belongs behind the text that all conversations share. Empty where nothing can be edited.
    """
    if cause.kind in MOVED:
        if gap.role in LISTS:  # a value inside a schema has no place to move to
            return ()
        return tuple(Edit(cause.kind, gap.path, gap.before, gap.after, to) for to in (END, PART))
    if cause.kind in _WHOLE or cause.kind in ("whitespace", "image_first"):
        return (Edit(cause.kind, gap.path, gap.before, gap.after),)
    return ()


def advice(kind: str, path: str, to: str) -> str:
    """What to move where, in words."""
    if kind in MOVED:
        what = "the text that differs" if kind == "varying_text" else "it"
        where = "to the end of the prompt (the last message)" if to == END else f"to the end of {path}"
        return f"move {what} {where}, or leave it out" if not path.startswith(LISTS) else f"leave it out of {path}"
    return _ADVICE[kind]


def _changed(body: Body, path: str, change: Callable[[Any], Any]) -> Body:
    """A copy of the body with the value at `path` changed; the body itself where there is no such value."""
    steps: list[str | int] = [name or int(place) for name, place in _STEP.findall(path)]
    try:
        copy: Any = _with(body, steps, change)
    except (KeyError, IndexError, TypeError):
        return body
    return copy if isinstance(copy, Mapping) else body


def _with(value: Any, steps: list[str | int], change: Callable[[Any], Any]) -> Any:
    if not steps:
        return change(value)
    step, *rest = steps
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    copy[step] = _with(value[step], rest, change)  # type: ignore[index] # a wrong kind raises, and is meant to
    return copy


def _appended(body: Body, text: str) -> Body:
    """The text behind everything else in the prompt."""

    def behind(content: Any) -> Any:
        if isinstance(content, list):
            return [*content, {"type": "text", "text": text}]
        return f"{content}\n{text}" if isinstance(content, str) else text

    for name in ("messages", "input"):
        given = body.get(name)
        if isinstance(given, list) and given and isinstance(given[-1], Mapping):
            return _changed(
                body, f"{name}[{len(given) - 1}]", lambda last: {**last, "content": behind(last.get("content"))}
            )
    for name in ("prompt", "input"):
        if isinstance(body.get(name), str):
            return {**body, name: behind(body[name])}
    return body


def _sorted_tools(body: Body) -> Body:
    edited = dict(body)
    for name in ("tools", "functions", "documents"):
        if isinstance(body.get(name), list):
            edited[name] = sorted(body[name], key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
    return edited


def _sorted_keys(body: Body) -> Body:
    edited = dict(body)
    for name in ("tools", "functions", "documents"):
        if isinstance(body.get(name), list):
            edited[name] = orjson.loads(orjson.dumps(body[name], option=orjson.OPT_SORT_KEYS))
    return edited


def _unsalted(body: Body) -> Body:
    return {name: value for name, value in body.items() if name != "cache_salt"}


def _texts_first(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return sorted(
        content, key=lambda part: not (isinstance(part, str) or (isinstance(part, Mapping) and "text" in part))
    )


_WHOLE: dict[str, Callable[[Body], Body]] = {
    "tool_order": _sorted_tools,
    "schema_key_order": _sorted_keys,
    "document_order": _sorted_tools,
    "salt": _unsalted,
}
