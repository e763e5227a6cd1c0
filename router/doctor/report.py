"""A diagnosis as JSON and as text.

The one rule: without `show_text` nothing of a prompt is told but the shape of a value: `2026-…`. Not here: finding it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from router.doctor.findings import Diagnosis, Finding

_LONGEST_SHOWN = 120
_TELLING = frozenset(["timestamp", "date", "uuid", "request_id"])
_OPENING = re.compile(r"\d{4}[-/.]|\d{1,2}:|[0-9A-Za-z]{2}(?=[0-9a-f-]{3})")
_NAMES = frozenset(["model"])


def masked(value: str, kind: str, *, show_text: bool) -> str:
    """A value as a report may show it: whole only where text may be shown, else how it begins and how long it is."""
    if not value or show_text or kind in _NAMES:
        return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"
    opening = _OPENING.match(value) if kind in _TELLING else None
    return f"{opening[0] if opening else ''}… ({len(value)} characters)"


def document(diagnosis: Diagnosis, *, show_text: bool = False) -> dict[str, Any]:
    """The diagnosis for machines."""
    return {
        "breaks": diagnosis.breaks,
        "requests": diagnosis.requests,
        "prompt_tokens": diagnosis.prompt_tokens,
        "exact": diagnosis.exact,
        "block_tokens": diagnosis.block_tokens,
        "duration_s": diagnosis.duration_s,
        "notes": list(diagnosis.notes),
        "families": [
            {
                "number": family.number,
                "route": family.route,
                "model": family.model,
                "requests": family.requests,
                "prompt_tokens": family.prompt_tokens,
                "findings": [_finding(one, diagnosis, show_text=show_text) for one in family.findings],
            }
            for family in diagnosis.families
        ],
    }


def _finding(one: Finding, diagnosis: Diagnosis, *, show_text: bool) -> dict[str, Any]:
    hours = None if not diagnosis.duration_s else diagnosis.duration_s / 3600
    return {
        "kind": one.cause.kind,
        "what": one.cause.told,
        "sure": one.cause.sure,
        "breaks": one.breaks,
        "path": one.path,
        "role": one.role,
        "message": one.message,
        "offset": one.offset,
        "block": one.block,
        "exact": one.exact,
        "values": [masked(value, one.cause.kind, show_text=show_text) for value in one.values],
        "requests": one.requests,
        "lost_tokens": one.lost_tokens,
        "lost_fraction": round(one.lost_fraction, 4),
        "lost_tokens_per_hour": None if hours is None else round(one.lost_tokens / hours),
        "lost_tokens_per_1000_requests": round(1000 * one.lost_tokens / diagnosis.requests),
        "saved_tokens": one.saved_tokens,
        "advice": one.advice,
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """A `document` for people."""
    basis = "by the model's tokens" if told["exact"] else "by text, 4 characters a token"
    families = told["families"]
    yield (
        f"{told['requests']:,} prompts of {told['prompt_tokens']:,} tokens ({basis}), "
        f"{_many(len(families), 'family', 'families')}"
    )
    for family in families:
        if family["findings"]:
            yield ""
            yield from _family(family)
    yield ""
    for note in told["notes"]:
        yield f"note: {note}"
    yield _counted([one for family in families for one in family["findings"]])


def live_lines(told: Mapping[str, Any]) -> Iterator[str]:
    """What a running router's doctor tells, for people; behind it what it says of texts, where it keeps any."""
    for route in told["routes"]:
        yield (
            f"{_plain(route['route'])}: {route['requests']:,} requests of {route['prompt_tokens']:,} tokens, "
            f"{route['looked_at']:,} looked at"
        )
    for one in told["findings"]:
        yield ""
        yield f"{_plain(one['route'])}:"
        yield f"  {_headline(one)}"
        yield (
            f"    {one['lost_tokens']:,} tokens computed again, {one['lost_fraction']:.0%} of the route's"
            f" ({one['lost_tokens_per_hour']:,} per hour)"
        )
        yield f"    {one['advice']}; {_saves(one)}"
    yield ""
    yield _counted(told["findings"])
    if told.get("text"):
        yield ""
        yield from lines(told["text"])


def _family(family: Mapping[str, Any]) -> Iterator[str]:
    model = f", {_plain(family['model'])}" if family["model"] else ""
    yield (
        f"family {family['number']}: {_plain(family['route'])}{model},"
        f" {family['requests']:,} prompts of {family['prompt_tokens']:,} tokens"
    )
    for one in family["findings"]:
        yield from _told(one)


def _told(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {_headline(one)}"
    old, new = map(_plain, one["values"])
    yield f"    {old or 'nothing'} → {new or 'nothing'}"
    hourly = one["lost_tokens_per_hour"]
    rate = f"{one['lost_tokens_per_1000_requests']:,} per 1,000 requests" if hourly is None else f"{hourly:,} per hour"
    yield (
        f"    every block from there on is lost: {one['lost_tokens']:,} tokens computed again in"
        f" {_many(one['requests'], 'request', 'requests')}, {one['lost_fraction']:.0%} of the family's ({rate})"
    )
    yield f"    {one['advice']}; {_saves(one)}"


def _saves(one: Mapping[str, Any]) -> str:
    saved = one.get("saved_tokens")
    return f"that saves {'at most what is lost' if saved is None else f'{saved:,} tokens (replayed)'}"


def _headline(one: Mapping[str, Any]) -> str:
    word = "BREAKS" if one["breaks"] else "minor"
    where = _plain(one["path"]) + (f" ({_plain(one['role'])})" if one["role"] else "")
    block = f", block {one['block']}" if "block" in one else ""
    return f"{word}: {where}, character {one['offset']}{block}: {one['what']} ({one['sure']})"


def _counted(findings: Sequence[Mapping[str, Any]]) -> str:
    return f"{_many(sum(one['breaks'] for one in findings), 'place breaks', 'places break')} the prefix"


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _plain(text: str) -> str:
    """A client's word as a terminal may show it: nothing in it steers the terminal."""
    return "".join(char if char.isprintable() else "·" for char in text)
