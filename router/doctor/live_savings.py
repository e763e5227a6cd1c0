"""What mending a live finding would save: the sketches a running router keeps, through a cache, as seen and as mended.

Lines travel as numbers that mean nothing outside one answer, and their lengths; a prompt is rebuilt from them with as
many tokens, equal where lines are equal. The one rule: the replay is the simulator's, given by the caller. Not here:
replays of prompts with text (`savings`), and who keeps the sketches (`live`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from policies.blocks import Chain, block_keys
from router.doctor.edits import END, MOVED, PART, advice
from router.doctor.savings import Prompt, Replay
from router.doctor.sketches import Sketch
from router.prompt_bodies import BYTES_PER_TOKEN

_RARE = 0.5  # of the sketches; a line that more of them share is not what differs


class Line(Struct, frozen=True, array_like=True):
    """One line, tool, or whole message of a prompt."""

    number: int
    chars: int
    path: str
    role: str
    message: int | None
    opaque: bool
    kind: str
    alike: int
    """The number of what is left of it when order or white space don't count."""


class Seen(Struct, frozen=True, array_like=True):
    """One prompt, rebuilt."""

    root: int
    salt: int | None
    lines: list[Line]


def told(sketches: Sequence[Sketch]) -> list[Seen]:
    """Sketches without the hashes in them, so that nobody can try a guess on a line."""
    numbers: dict[object, int] = {}

    def number(value: object) -> int:
        return numbers.setdefault(value, len(numbers))

    seen = []
    for one in sketches:
        salt = dict(one.roots).get("cache_salt")
        root = number(tuple(pair for pair in one.roots if pair[0] != "cache_salt"))
        tools = iter(one.tools)
        lines = []
        for unit in one.units:
            if unit.part >= 0:
                place = one.places[unit.part]
                alike = next(tools, unit.key) if place.role == "tools" else unit.plain or unit.key
                where = (place.path, place.role, place.message, place.opaque, unit.kind)
                lines.append(Line(number(unit.key), unit.chars, *where, number(("alike", alike))))
        seen.append(Seen(root, None if salt is None else number(("salt", salt)), lines))
    return seen


def with_savings(told: Mapping[str, Any], replay: Replay) -> dict[str, Any]:
    """The answer of `GET /doctor?sketches=1` with what mending saves in place of the sketches.

    `saved_tokens` is of one finding and those ahead of it in the prompt together; None where nothing can be edited.
    Raises `msgspec.ValidationError` for sketches that are none.
    """
    findings = [{**one, "saved_tokens": None} for one in told["findings"]]
    tokens = {one["route"]: one["prompt_tokens"] for one in told["routes"]}
    size = told.get("block_tokens", BYTES_PER_TOKEN * 4)
    for route, sketches in told.get("sketches", {}).items():
        ours = sorted([one for one in findings if one["route"] == route], key=lambda one: one["block"])
        for one, found in zip(ours, _saved(msgspec.convert(sketches, list[Seen]), ours, replay, size), strict=True):
            if found is not None:
                fraction, to = found
                one["saved_tokens"] = round(fraction * tokens.get(route, 0))
                one["advice"] = advice(one["kind"], one["path"], to)
    return {**{name: value for name, value in told.items() if name != "sketches"}, "findings": findings}


def _saved(
    seen: Sequence[Seen], findings: Sequence[Mapping[str, Any]], replay: Replay, block_tokens: int
) -> Iterable[tuple[float, str] | None]:
    """For each finding the share of the prompts' tokens that is saved, and where what differs should go."""

    def hits(prompts: Sequence[Seen]) -> tuple[int, int]:
        made = [_prompt(one, block_tokens) for one in prompts]
        return max(1, sum([tokens for tokens, _ in made])), replay(made, block_tokens)

    total, before = hits(seen)
    for one in findings:
        tried = []
        for to in (END, PART) if one["kind"] in MOVED else (END,):
            mended = _mended(seen, one, to)
            if mended is not None:
                tried.append((hits(mended)[1], to, mended))
        if not tried:
            yield None
            continue
        after, to, seen = max(tried, key=lambda one: one[0])
        yield max(0, after - before) / total, to


def _prompt(seen: Seen, block_tokens: int) -> Prompt:
    pieces = []
    for line in seen.lines:
        pattern = line.number.to_bytes(8, "little")
        size = -(-line.chars // BYTES_PER_TOKEN) * BYTES_PER_TOKEN
        pieces.append((pattern * (size // len(pattern) + 1))[:size])
    data = b"".join(pieces)
    salt = "" if seen.salt is None else str(seen.salt)
    return len(data) // BYTES_PER_TOKEN, block_keys(Chain.root(str(seen.root), "", salt), data, block_tokens)


def _mended(seen: Sequence[Seen], finding: Mapping[str, Any], to: str) -> list[Seen] | None:
    """The prompts as they would be; None where nothing can be edited."""
    kind = finding["kind"]
    if kind in MOVED:
        return None if finding["role"] in ("tools", "documents") else _moved(seen, finding, to)
    change = _CHANGES.get(kind)
    if kind == "document_order" and finding["role"] != "documents":
        return None  # documents within a text, which has no parts to put in order
    return None if change is None else [change(one) for one in seen]


def _moved(seen: Sequence[Seen], finding: Mapping[str, Any], to: str) -> list[Seen]:
    """With the lines that differ behind all else, or behind the part they stand in."""
    often = Counter(number for one in seen for number in {line.number for line in one.lines})

    def differs(line: Line) -> bool:
        here = line.path == finding["path"] and often[line.number] <= max(1, _RARE * len(seen))
        return here and (not line.kind or line.kind == finding["kind"] or finding["kind"] == "varying_text")

    found = []
    for one in seen:
        moved = [line for line in one.lines if differs(line)]
        kept = [line for line in one.lines if not differs(line)]
        last = [place for place, line in enumerate(kept) if line.path == finding["path"]]
        at = last[-1] + 1 if to == PART and last else len(kept)
        found.append(replace(one, lines=[*kept[:at], *moved, *kept[at:]]))
    return found


def _in_order(seen: Seen) -> Seen:
    """Tools and documents in one order."""
    kept = [line for line in seen.lines if line.role not in ("tools", "documents")]
    listed = [line for line in seen.lines if line.role in ("tools", "documents")]
    return replace(seen, lines=[*sorted(listed, key=lambda line: (line.role, line.alike)), *kept])


def _alike(seen: Seen) -> Seen:
    """Where only the order of keys or white space differs, nothing does."""
    return replace(seen, lines=[replace(line, number=line.alike) for line in seen.lines])


def _texts_first(seen: Seen) -> Seen:
    """Images behind the text of their message."""
    messages = {line.message: place for place, line in reversed(list(enumerate(seen.lines)))}
    return replace(seen, lines=sorted(seen.lines, key=lambda line: (messages[line.message], line.opaque)))


_CHANGES: dict[str, Callable[[Seen], Seen]] = {
    "tool_order": _in_order,
    "document_order": _in_order,
    "schema_key_order": _alike,
    "whitespace": _alike,
    "image_first": _texts_first,
    "salt": lambda seen: replace(seen, salt=None),
}
