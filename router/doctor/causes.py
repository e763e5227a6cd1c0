"""What a gap is: a clock, an id, a counter, a name, another order, other white space, a cut history …

Told by what differs and by the words around it, in both prompts. The one rule: a cause is said with how sure it is, and
conversations that simply are different ones have none. Not here: what it costs (`savings`).
"""

import re
from typing import Literal

from msgspec import Struct

from router.doctor.divergence import Gap
from router.doctor.parts import Part, canonical

Sureness = Literal["certain", "likely", "guess"]


class Cause(Struct, frozen=True):
    """A kind of breaker, in words for people."""

    kind: str
    sure: Sureness
    told: str


_MONTHS = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAYS = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|\b(?:mon|tue|wed|thu|fri|sat|sun)\b"
_PATTERNS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("uuid", r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"),
        ("timestamp", r"\d{4}-\d\d-\d\d[T ,]+\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?"),
        ("timestamp", r"\b\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:\s?[ap]\.?m\b)?"),
        ("timestamp", r"(?<![\d.])1[5-9]\d{8}(?:\d{3}){0,3}(?:\.\d+)?(?!\d)"),
        ("date", r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b|\b\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b|\d{4}年\d{1,2}月\d{1,2}日"),
        ("date", rf"\b{_MONTHS}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s+\d{{4}})?"),
        ("date", rf"\b\d{{1,2}}\.?(?:st|nd|rd|th)?\s+{_MONTHS}\b(?:,?\s+\d{{4}})?"),
        ("date", rf"{_DAYS}"),
        ("personal", r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]{1,64}"),
    )
)
_ID_BEFORE = re.compile(
    r"(?:\b|_)(?:\w*id|nonce|uuid|guid|trace|request|req|session|token|hash|build|run|ticket|ref|key|seed|etag|version|x)"
    r"\s*(?:number|no\.?)?[\"']?\s*[:=#]?\s*[\"'<(\[]?$",
    re.IGNORECASE,
)
_COUNT_BEFORE = re.compile(r"(?:#|no\.?|number|count|turn|step|attempt|request|message|visit|n)\W*$", re.IGNORECASE)
_NAME_BEFORE = re.compile(
    r"(?:user(?:\s?name)?|name|customer|client|hello|hi|dear|e-?mail|account|caller|speaking (?:with|to)|assist(?:ing)?"
    r"|help(?:ing)?|phone|address|tenant|company|employee|member|patient)"
    r"(?:\s+(?:is|named|called))?[\"']?\s*[:=,]?\s*[\"'<(\[]*$",
    re.IGNORECASE,
)
_SHAPED_ID = re.compile(
    r"(?:id|nonce|uuid|guid|trace|request|token|hash|build|ticket|key)\W{1,3}((?=[\w-]*\d)[\w-]{4,})", re.IGNORECASE
)
_SHAPED_COUNT = re.compile(r"(?:#|number|no\.|count|turn|step|attempt)\s?[:=]?\s?(\d+)", re.IGNORECASE)
_SHAPED_NAME = re.compile(
    r"(?i:user(?:'s)?(?: name)?|name|customer|client|hello|dear|caller|helping|company)(?: is| named)?\W{1,3}([A-Z]\w+)"
)
_TOLD = {
    "timestamp": "a time of day that is new in every request",
    "date": "a date that changes",
    "uuid": "a UUID",
    "request_id": "an id or nonce that is new in every request",
    "counter": "a number that counts",
    "personal": "a name or other personal data",
    "whitespace": "white space only",
    "tool_order": "the same tools in another order",
    "schema_key_order": "the same tools with members in another order",
    "tools_changed": "other tools than before",
    "document_order": "the same texts in another order",
    "documents_changed": "other documents than before",
    "image_first": "an image ahead of text that all share",
    "truncated_history": "a history whose beginning was cut off",
    "edited_history": "a history that was changed after it was sent",
    "model": "another model or adapter",
    "salt": "another cache salt",
    "template": "other template settings",
    "varying_text": "text that differs, ahead of text that all share",
}


def cause_of(gap: Gap) -> Cause | None:
    """What a gap is; None where two prompts simply are about different things."""
    found = _of_root(gap) or _of_lists(gap) or _of_messages(gap)
    if found is None or found[0] == "":
        return None
    return Cause(found[0], found[1], _TOLD[found[0]])


def told_of(kind: str) -> str:
    """A kind in words."""
    return _TOLD[kind]


def shape(text: str) -> tuple[str, int]:
    """What kind of changing value stands in a text, and where, going by this text alone; an empty kind for none."""
    for kind, pattern in _PATTERNS:
        found = pattern.search(text)
        if found is not None:
            return kind, found.start()
    found = _SHAPED_ID.search(text) or _SHAPED_COUNT.search(text) or _SHAPED_NAME.search(text)
    if found is None:
        return "", 0
    kind = {_SHAPED_ID: "request_id", _SHAPED_COUNT: "counter"}.get(found.re, "personal")
    return kind, found.start(1)


def _of_root(gap: Gap) -> tuple[str, Sureness] | None:
    if not gap.member:
        return None
    return ({"model": "model", "cache_salt": "salt"}.get(gap.member, "template"), "certain")


def _of_lists(gap: Gap) -> tuple[str, Sureness] | None:
    if gap.role not in ("tools", "documents"):
        return None
    old, new = [part.text for part in gap.a_parts], [part.text for part in gap.b_parts]
    if sorted(old) == sorted(new):
        return ("tool_order" if gap.role == "tools" else "document_order"), "certain"
    plain_old, plain_new = [canonical(text) for text in old], [canonical(text) for text in new]
    if plain_old == plain_new:
        return "schema_key_order", "certain"
    if sorted(plain_old) == sorted(plain_new):
        return ("tool_order" if gap.role == "tools" else "document_order"), "certain"
    if len(old) == len(new):
        named = volatile(gap)
        if named is not None:
            return named
    return ("tools_changed" if gap.role == "tools" else "documents_changed"), "likely"


def _of_messages(gap: Gap) -> tuple[str, Sureness] | None:
    if gap.moved:
        named = volatile(gap)  # a value right ahead of texts that changed places is the first thing to mend
        return named if named is not None and named[1] == "certain" else ("document_order", "likely")
    if any(part.opaque for part in (*gap.a_parts, *gap.b_parts)):
        return "image_first", "certain"
    gone, come = _messages(gap.a_parts), _messages(gap.b_parts)
    text_gone, text_come = _size(gap.a_parts), _size(gap.b_parts)
    if len(gone) > len(come) and gone and min(gone) > 0 and text_come < 0.5 * text_gone:
        return "truncated_history", "likely"
    if _squeezed(gap.a_span) == _squeezed(gap.b_span):
        return "whitespace", "certain"
    if len(gone) > 1 or len(come) > 1:
        return ("varying_text", "guess") if _in_head(gap) else None
    named = volatile(gap)
    if named is not None and (named[1] != "guess" or _in_head(gap)):
        return named
    if _in_head(gap):
        return "varying_text", "guess"
    if gap.run_chars and gap.a_parts and gap.b_parts and gap.a_parts[0].path == gap.b_parts[0].path:
        return "edited_history", "guess"
    return None


def _in_head(gap: Gap) -> bool:
    """System text, a plain prompt, or the first message a user sends: what templates write."""
    return gap.role in ("system", "developer", "tools", "") or gap.message in (None, 0, 1)


def _messages(parts: tuple[Part, ...]) -> set[int]:
    return {part.message for part in parts if part.message is not None}


def _size(parts: tuple[Part, ...]) -> int:
    return sum([len(part.text) for part in parts])


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def volatile(gap: Gap) -> tuple[str, Sureness] | None:
    """What kind of changing value the spans are; None when they are just text.

    A value that one of the prompts does not hold at all goes by the other one's shape, and is less sure.
    """
    old, new = gap.a_span.strip(), gap.b_span.strip()
    both = bool(old and new)
    for kind, pattern in _PATTERNS:
        if all(_overlaps(pattern, line, span) for line, span in ((gap.a_line, old), (gap.b_line, new)) if span):
            return kind, "certain" if both else "likely"
    old, new = old or new, new or old
    words = max(len(old.split()), len(new.split()))
    if words <= 1:
        found = _of_word(old, new, gap.before)
        if found is not None:
            return found
    if words <= 6 and _NAME_BEFORE.search(gap.before):
        return "personal", "likely"
    if words <= 4 and both and all(word[:1].isupper() for text in (old, new) for word in text.split()):
        return "personal", "guess"
    return None


def _of_word(old: str, new: str, before: str) -> tuple[str, Sureness] | None:
    one, other = old.strip("\"'[]()<>#:,;"), new.strip("\"'[]()<>#:,;")
    value, later = _value(one), _value(other)
    if value.isdecimal() and later.isdecimal():
        if _ID_BEFORE.search(before) and len(later) > 6:
            return "request_id", "likely"
        return "counter", "certain" if int(later) > int(value) and _COUNT_BEFORE.search(before) else "likely"
    if _NAME_BEFORE.search(before):
        return "personal", "likely"
    mixed = all(re.search(r"\d", text) and len(text) >= 4 for text in (value, later))
    if mixed and (len(later) >= 8 or _ID_BEFORE.search(before) or "=" in one or ":" in one):
        return "request_id", "certain" if _ID_BEFORE.search(before) else "likely"
    if _ID_BEFORE.search(before) and len(later) >= 4:
        return "request_id", "likely"
    return None


def _value(word: str) -> str:
    """What stands behind the last sign of assignment in a word, and behind what names it."""
    return re.split(r"[=:]", word)[-1] or word


def _overlaps(pattern: re.Pattern[str], line: str, span: str) -> bool:
    """Whether a match in the line touches the span."""
    if not span:
        return False
    at = line.find(span)
    if at < 0:
        return pattern.search(span[:200]) is not None
    window = max(0, at - 40)
    text = line[window : at + min(len(span), 200) + 40]
    low, high = at - window, at - window + min(len(span), 200)
    return any(match.start() < high and match.end() > low for match in pattern.finditer(text))
