"""Which template a prompt was made from, by the lines of its head: what `route_by = "template"` names a route after.

The head is the system message, or what else stands first. A template is the lines that several prompts had in common,
so values put into it (a clock, a name) don't make another one. The one rule: text is looked at and not kept, and there
are only so many templates and candidates. Not here: models' chat templates (`templates`), breakers (`doctor`).
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import msgspec
import xxhash
from msgspec import UNSET, Raw, Struct, UnsetType, field

MOST = 200
"""Templates with a name."""
_CANDIDATES = 1000
_OFTEN = 3  # prompts that share a head make it a template
_SHARE = 0.5  # of a head's characters must be of a template
_HEAD_BYTES = 8192
_LINES = 64
_LONG_BYTES = 400  # a line that is longer is cut into sentences

Voted = TypeVar("Voted", int, str)
Lines = Sequence[tuple[int, int]]
"""Hash and length of every line, in order."""


class _Message(Struct):
    role: str | None = None
    content: Raw = field(default_factory=Raw)


class _Body(Struct):
    system: Raw | UnsetType = UNSET
    instructions: Raw | UnsetType = UNSET
    messages: list[_Message] | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET


_body = msgspec.json.Decoder(_Body)


class _Candidate(Struct):
    lines: Lines
    often: int = 1


class Heads:
    """Takes bodies one by one; a template has a name from the third prompt of it on."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._known: dict[int, str] = {}
        self._candidates: OrderedDict[int, _Candidate] = OrderedDict()
        self._lines: dict[int, int] = {}
        """By line, the number of the candidate it stands for."""
        self._count = 0

    def __repr__(self) -> str:
        return f"<Heads of {len(self._names)} templates>"

    def of(self, body: bytes) -> str | None:
        """The name of the template; None while there is none."""
        lines = head(body)
        if not lines:
            return None
        name = _voted(self._known, lines)
        if name is not None or len(self._names) >= MOST:
            return name
        number = _voted(self._lines, lines)
        candidate = None if number is None else self._candidates.get(number)
        if number is None or candidate is None:
            self._wait(lines)
            return None
        self._narrowed(number, candidate, {key for key, _ in lines})
        candidate.often += 1
        if candidate.often < _OFTEN:
            return None
        return self._named(self._dropped(number))

    def _wait(self, lines: Lines) -> None:
        self._count += 1
        self._candidates[self._count] = _Candidate(lines)
        for key, _ in lines:
            self._lines.setdefault(key, self._count)
        if len(self._candidates) > _CANDIDATES:
            self._dropped(next(iter(self._candidates)))

    def _narrowed(self, number: int, candidate: _Candidate, kept: Collection[int]) -> None:
        for key, _ in candidate.lines:
            if key not in kept and self._lines.get(key) == number:
                del self._lines[key]
        candidate.lines = [line for line in candidate.lines if line[0] in kept]

    def _dropped(self, number: int) -> Lines:
        candidate = self._candidates.pop(number)
        lines = candidate.lines
        self._narrowed(number, candidate, ())
        return lines

    def _named(self, lines: Lines) -> str:
        digest = xxhash.xxh64_intdigest(b"".join([key.to_bytes(8, "big") for key, _ in lines]))
        name = f"template-{digest & 0xFFFFFFFF:08x}"
        self._names.add(name)
        for key, _ in lines:
            self._known.setdefault(key, name)
        return name


def _voted(known: Mapping[int, Voted], lines: Lines) -> Voted | None:
    votes: Counter[Voted] = Counter()
    for key, size in lines:
        found = known.get(key)
        if found is not None:
            votes[found] += size
    if not votes:
        return None
    best, size = votes.most_common(1)[0]
    return best if size >= _SHARE * sum([size for _, size in lines]) else None


def head(body: bytes) -> Lines:
    """The lines of what stands first in the prompt; none where the body has no prompt in text."""
    try:
        found = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # orjson reads some that are nested deeper
        return []
    raw = _first(found)
    if raw is None:
        return []
    cut: list[bytes] = []
    for line in bytes(raw)[1:_HEAD_BYTES].split(b"\\n", _LINES):  # as JSON spells a new line
        cut += line.split(b". ") if len(line) > _LONG_BYTES else (line,)
    return [(xxhash.xxh64_intdigest(line), len(line)) for line in cut[:_LINES] if len(line) > 1]


def _first(body: _Body) -> Raw | None:
    for given in (body.system, body.instructions):
        if isinstance(given, Raw):
            return given
    if isinstance(body.messages, list) and body.messages:
        named = (one for one in body.messages if one.role in ("system", "developer"))
        return next(named, body.messages[0]).content
    for given in (body.prompt, body.input):
        if isinstance(given, Raw):
            return given
    return None
