"""Rendering chats without running their template: what it did for one chat is done again for others of the same shape.

A shape is the roles and everything but the contents. The first chat of a shape is rendered with traced contents, which
gives a plan: guards on the contents, and the pieces of the text. A later chat for which all guards hold gets its text
from the pieces; Qwen3's template takes 20 to 40 times as long. The one rule: a plan is kept only if it gives back, to
the letter, what the template itself makes of the chat it was learnt from. Not here: chats with more than plain texts.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from policies.values import Fixed
from router.chat import conversation
from router.places import Guard, Place
from router.prompt_cache import utf8
from router.templates import ChatTemplate
from router.traced import Trace, Traced

_SHAPING: Final = (
    "tools",
    "documents",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
)
"""Members beside the messages that a template sees."""
_NOT_PLANNED: Final = frozenset(["chat_template", "continue_final_message"])
SHAPING: Final = frozenset(_SHAPING) | _NOT_PLANNED
"""Members beside the messages that may change how a chat is rendered."""
_ROLES: Final = ("system", "user", "assistant")  # a tuple: a role may be anything, hashable or not

_SHAPES: Final = 256
_PLANS_PER_SHAPE: Final = 4
_ATTEMPTS: Final = 8  # a shape that could not be learnt so many times is not tried again
_LONGEST_SHAPE_BYTES: Final = 256 * 1024  # of tools and the like

Shape = tuple[tuple[str, ...], bytes]


class _Plan(Fixed, frozen=True):
    guards: tuple[Guard, ...]
    dates: tuple[tuple[str, str], ...]
    pieces: tuple[str | Place, ...]
    cut: tuple[tuple[bytes | Place, ...], ...]
    """The same, cut before each place where texts may be cut."""

    def holds(self, contents: list[str], template: ChatTemplate) -> bool:
        """Whether the template would take the same way again."""
        for guard in self.guards:
            if not guard.holds(contents):
                return False
        return all(template.date(form) == date for form, date in self.dates) if self.dates else True

    def text(self, contents: list[str]) -> str:
        """The rendered text."""
        return "".join([piece if isinstance(piece, str) else piece.of(contents) for piece in self.pieces])

    def cut_text(self, contents: list[str]) -> list[bytes]:
        """The rendered text in pieces, as UTF-8. A content is never cut: that is as safe as cutting."""
        return [
            b"".join([part if isinstance(part, bytes) else utf8(part.of(contents)) for part in parts])
            for parts in self.cut
        ]


@dataclass(slots=True)
class _Learnt:
    """The plans of one shape. Texts may be asked for in several threads, so `plans` is replaced and never changed."""

    plans: tuple[_Plan, ...] = ()
    attempts_left: int = _ATTEMPTS


class RenderPlans:
    """What has been learnt of one template; bounded, the shapes learnt first go first."""

    def __init__(self, template: ChatTemplate, cut: str = "") -> None:
        """`cut` is the special token before which texts may be cut; empty where they may not."""
        self._template = template
        self._cut = cut
        self._shapes: OrderedDict[Shape, _Learnt] = OrderedDict()

    def __repr__(self) -> str:
        return f"<RenderPlans {sum(len(learnt.plans) for learnt in self._shapes.values())} plans>"

    def text(self, body: Mapping[str, Any], most_chars: int | None = None) -> str | None:
        """A chat's text exactly as the template renders it; None when that takes the template.

        With `most_chars`, None for a chat of more, before anything is done with it.
        """
        found = self._plan(body, most_chars)
        return None if found is None else found[0].text(found[1])

    def cut_text(self, body: Mapping[str, Any]) -> list[bytes] | None:
        """The same text as UTF-8, in the pieces it may be tokenized in."""
        found = self._plan(body, None)
        return None if found is None else found[0].cut_text(found[1])

    def _plan(self, body: Mapping[str, Any], most_chars: int | None) -> tuple[_Plan, list[str]] | None:
        """What gives a chat's text, and the contents of its messages."""
        found = _contents(body, most_chars)
        if found is None:
            return None
        shape, contents = found
        learnt = self._shapes.get(shape)
        if learnt is None:
            learnt = self._shapes[shape] = _Learnt()
            if len(self._shapes) > _SHAPES:
                self._shapes.popitem(last=False)
        else:
            for plan in learnt.plans:
                if plan.holds(contents, self._template):
                    return plan, contents
        if not learnt.attempts_left:
            return None
        learnt.attempts_left -= 1
        made = self._learn(learnt, body, contents)
        return None if made is None else (made, contents)

    def _learn(self, learnt: _Learnt, body: Mapping[str, Any], contents: list[str]) -> _Plan | None:
        trace = Trace(contents)
        traced = [
            {"role": message["role"], "content": Traced.at(Place(number), trace)}
            for number, message in enumerate(body["messages"])
        ]
        try:
            text = self._rendered(body)
            pieces = self._traced({**body, "messages": traced}, trace)
        except Exception:  # a template may raise anything over strings that are not what they seem
            return None
        guards, dates = tuple(dict.fromkeys(trace.guards)), tuple(trace.dates)
        plan = _Plan(guards, dates, pieces, _cut(pieces, self._cut))
        if not plan.holds(contents, self._template) or plan.text(contents) != text:
            return None
        learnt.plans = (*learnt.plans[-_PLANS_PER_SHAPE + 1 :], plan)
        learnt.attempts_left = _ATTEMPTS
        return plan

    def _rendered(self, body: Mapping[str, Any]) -> str:
        asked = self._asked(body)
        return self._template.render(
            asked.messages, asked.tools, asked.variables, add_generation_prompt=asked.add_generation_prompt
        )

    def _traced(self, body: Mapping[str, Any], trace: Trace) -> tuple[str | Place, ...]:
        asked = self._asked(body)
        text = self._template.traced(
            trace, asked.messages, asked.tools, asked.variables, add_generation_prompt=asked.add_generation_prompt
        )
        return _merged(getattr(text, "pieces", (text,)))

    def _asked(self, body: Mapping[str, Any]) -> Any:
        template = self._template
        return conversation(body, takes_parts=template.takes_parts, knows_developer=template.knows_developer)


def _contents(body: Mapping[str, Any], most_chars: int | None) -> tuple[Shape, list[str]] | None:
    """The shape and the contents of a chat whose messages are a role and a text each; None for any other."""
    messages = body.get("messages")
    if type(messages) is not list or not messages:
        return None
    roles = []
    contents = []
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return None
        content, role = message.get("content"), message.get("role")
        if type(content) is not str or role not in _ROLES:
            return None
        roles.append(role)
        contents.append(content)
    if most_chars is not None and sum(map(len, contents)) > most_chars:
        return None
    rest = b""
    seen = SHAPING.intersection(body)
    if seen:
        if seen & _NOT_PLANNED:
            return None
        try:
            rest = orjson.dumps([body.get(name) for name in _SHAPING])
        except (TypeError, ValueError):  # integers beyond 64 bits
            return None
        if len(rest) > _LONGEST_SHAPE_BYTES:
            return None
    return (tuple(roles), rest), contents


def _cut(pieces: tuple[str | Place, ...], cut: str) -> tuple[tuple[bytes | Place, ...], ...]:
    """The pieces in groups that begin where literal text may be cut."""
    groups: list[list[bytes | Place]] = [[]]
    for piece in pieces:
        if not isinstance(piece, str):
            groups[-1].append(piece)
            continue
        first, *rest = piece.split(cut) if cut else [piece]
        groups[-1] += [utf8(first)] if first else []
        groups += [[utf8(cut + more)] for more in rest]
    return tuple(tuple(group) for group in groups if group)


def _merged(pieces: tuple[str | Place, ...]) -> tuple[str | Place, ...]:
    """Literal text that stands together as one piece."""
    merged: list[str | Place] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return tuple(merged)
