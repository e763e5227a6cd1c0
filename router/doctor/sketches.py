"""A prompt as hashes and lengths, without a word of it, and what can be told from two of these.

Lines of the head (tools, system, the first message) are hashed one by one, later messages whole. Of a line that nobody
has seen before the shape of the changing value in it is kept: that there is a clock, and where. The one rule: no text
outlives `sketch`. Not here: the doctor with text (`checkup`), and what is kept of many prompts (`live`).
"""

from collections.abc import Iterable, MutableMapping, Sequence
from itertools import islice

from msgspec import Struct

from router.doctor.causes import Sureness, shape
from router.doctor.divergence import matched
from router.doctor.families import chunks, hashed
from router.doctor.parts import Asked, Part, canonical

_HEAD_CHUNKS = 256
_SHAPED_CHARS = 400
_LOOKS = 12
_ROOT = -1
_SHORT = 40  # characters


class Unit(Struct, frozen=True):
    """One line, tool, or whole message. Part -1 is what stands before all text."""

    key: int
    part: int
    start: int
    chars: int
    kind: str = ""
    """What kind of changing value it holds, where that was looked at."""
    at: int = 0
    """Where in it."""
    plain: int = 0
    """Its hash without white space, where that was looked at."""


class Place(Struct, frozen=True):
    path: str
    role: str
    message: int | None
    opaque: bool


class Sketch(Struct):
    """One prompt."""

    roots: tuple[tuple[str, int], ...]
    places: list[Place]
    units: list[Unit]
    keys: list[int]
    tools: tuple[int, ...]
    """Hashes of the tools with their members in order."""
    chars: int


class Loss(Struct, frozen=True):
    """Where a prompt parts from an earlier one that shares text behind that place."""

    path: str
    role: str
    message: int | None
    offset: int
    kind: str
    sure: Sureness
    chars: int
    """What is computed again because of it."""
    ahead_chars: int
    """What stands before it in the later prompt."""


Shapes = MutableMapping[int, tuple[str, int, int]]
"""Kind, place and plain hash of lines by their keys: a line is looked at once."""


def sketch(ask: Asked, shapes: Shapes) -> Sketch:
    """A prompt without its text; `shapes` learns of the lines nobody has looked at."""
    looks = _LOOKS
    roots = tuple((name, hashed(value)) for name, value in ask.roots)
    units = [Unit(hashed(repr(ask.roots)), _ROOT, 0, 0)]
    places = []
    tools = []
    room = _HEAD_CHUNKS
    for number, part in enumerate(ask.parts):
        places.append(Place(part.path, part.role, part.message, part.opaque))
        if part.role == "tools":
            tools.append(hashed(canonical(part.text)))
        start = 0
        for text in _lines(part, room):
            key = hashed(text)
            found = shapes.get(key)
            if found is None and looks and (_is_head(part) or part.role == "tools"):
                found = shapes[key] = (*shape(text[:_SHAPED_CHARS]), hashed("".join(text.split())))
                looks -= 1
            units.append(Unit(key, number, start, len(text), *(found or ())))
            start += len(text)
            room -= 1
    return Sketch(roots, places, units, [unit.key for unit in units], tuple(tools), ask.chars)


def _lines(part: Part, room: int) -> Sequence[str]:
    """At most `room` lines of the head, the rest in one; later messages whole."""
    if room <= 0 or not _is_head(part):
        return (part.text,)
    found = list(islice(chunks(part.text), room))
    left = part.text[sum(map(len, found)) :]
    return [*found, left] if left else found


def _is_head(part: Part) -> bool:
    in_head = part.role in ("system", "developer", "") or part.message in (0, 1)
    return in_head and not part.opaque and part.role not in ("tools", "documents")


def leading(sketches: Iterable[Sketch], drawn: Sketch) -> int:
    """How many leading units of a sketch one of the others has as well."""
    keys, best = drawn.keys, 0
    for one in sketches:
        if one.keys[best : best + 1] == keys[best : best + 1] and one.keys[:best] == keys[:best]:
            best = _common(one.keys, keys)
    return best


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def loss(a: Sketch, b: Sketch, most_chars: int) -> Loss | None:
    """The first place where `b` parts from the earlier `a` with shared text behind it; None for other prompts.

    At most `most_chars` of what is shared is lost: an earlier prompt may have gone along for longer than `a`.
    """
    ahead = _common(a.keys, b.keys)
    runs = [
        (i, j, sum([unit.chars for unit in b.units[j : j + size]])) for i, j, size in matched(a.keys, b.keys, ahead)
    ]
    runs = [run for run in runs if run[2]]
    if not runs or ahead >= len(b.units):
        return None
    gone, come = a.units[ahead : runs[0][0]], b.units[ahead : runs[0][1]]
    where = come[0] if come else b.units[runs[0][1]]
    shared = sum([chars for _, _, chars in runs])
    if where.part == _ROOT:
        name = _root(a, b)
        kind = {"model": "model", "cache_salt": "salt"}.get(name, "template")
        return Loss(name, "", None, 0, kind, "certain", min(shared, most_chars), 0)
    place = b.places[where.part]
    kind, sure = _kind((a, gone), (b, come), place, ahead)
    if not kind:
        return None
    chars = min(max(shared, most_chars) if kind == "document_order" else shared, most_chars)
    at = where.at if kind == where.kind else 0
    before = sum([unit.chars for unit in b.units[:ahead]]) + at
    return Loss(place.path, place.role, place.message, where.start + at, kind, sure, chars, before)


def _root(a: Sketch, b: Sketch) -> str:
    old, new = dict(a.roots), dict(b.roots)
    return next((name for name in {**old, **new} if old.get(name) != new.get(name)), "model")


def _kind(
    old: tuple[Sketch, Sequence[Unit]], new: tuple[Sketch, Sequence[Unit]], place: Place, ahead: int
) -> tuple[str, Sureness]:
    (a, gone), (b, come) = old, new
    if place.role == "tools":
        return _of_tools(a, b, come)
    if any(a.places[unit.part].opaque for unit in gone) or any(b.places[unit.part].opaque for unit in come):
        return "image_first", "certain"
    if place.role == "documents" or _moved(a, gone, come, ahead):
        return "document_order", "likely"
    messages = {a.places[unit.part].message for unit in gone} - {None, 0}
    fresh = {b.places[unit.part].message for unit in come} - {None}
    if len(messages) > len(fresh) and sum(unit.chars for unit in come) < 0.5 * sum(unit.chars for unit in gone):
        return "truncated_history", "likely"
    plain = [[unit.plain for unit in units if unit.plain] for units in (gone, come)]
    if plain[0] == plain[1] != []:
        return "whitespace", "certain"
    named = next((unit.kind for unit in (*come, *gone) if unit.kind), "")
    if named:
        return named, "likely"
    in_head = place.role in ("system", "developer", "") or place.message in (None, 0, 1)
    return ("varying_text", "guess") if in_head else ("", "guess")


def _moved(a: Sketch, gone: Sequence[Unit], come: Sequence[Unit], ahead: int) -> bool:
    """Whether all that came stands elsewhere behind the gap in the earlier prompt."""
    long = {unit.key for unit in come if unit.chars > _SHORT}
    return bool(long and gone) and long <= set(a.keys[ahead + len(gone) :])


def _of_tools(a: Sketch, b: Sketch, come: Sequence[Unit]) -> tuple[str, Sureness]:
    if a.tools == b.tools:
        return "schema_key_order", "certain"
    if sorted(a.tools) == sorted(b.tools):
        return "tool_order", "certain"
    if len(a.tools) == len(b.tools) and come and come[0].kind:
        return come[0].kind, "likely"
    return "tools_changed", "likely"
