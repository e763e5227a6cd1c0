"""Where two prompts of one family part, and how much they share behind that.

Parts are cut into lines and sentences and aligned; a gap is a place where the two differ and text that both hold
follows: everything behind it is computed again for nothing. The one rule: what follows must be shared by the two
prompts, else the prompts simply are different. Not here: what a gap is (`causes`).
"""

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

from msgspec import Struct
from msgspec.structs import replace

from router.doctor.families import chunks, common_chars, common_parts, hashed
from router.doctor.parts import Asked, Part

_MOST_CHUNKS = 2500
_MANY_CHUNKS = 800
_ANCHOR = 48
_LEAST_MOVED = 40
LISTS = ("tools", "documents")
_WORD = frozenset("-_:.+/@#%")


class Gap(Struct, frozen=True):
    """One place where a later prompt `b` leaves an earlier one `a`, with shared text behind it."""

    path: str
    """In the later body."""
    role: str
    message: int | None
    offset: int
    """Of the first character that differs, in the member `path`."""
    chars_before: int
    """Of the later prompt, ahead of that character."""
    end_chars: int
    """Of the later prompt, up to where shared text begins again."""
    run_chars: int
    """Shared text behind the gap, up to the next one."""
    later_chars: int
    """Shared text behind the gap in all: what is lost because of it."""
    a_span: str
    """What differs, widened to whole words; empty where the earlier prompt has nothing there."""
    b_span: str
    before: str
    """The text of the later part just ahead of its span, and just behind it: how to find the span again."""
    after: str
    a_line: str
    b_line: str
    """The lines around the spans."""
    a_parts: tuple[Part, ...] = ()
    b_parts: tuple[Part, ...] = ()
    """Parts that the gap covers at least partly."""
    member: str = ""
    """The root member that differs, where it is one; the spans are its values then."""
    moved: bool = False
    """Most of what is gone came again elsewhere."""


class _Unit(Struct, frozen=True):
    key: int
    part: int
    start: int
    chars: int


def gaps(a: Asked, b: Asked) -> list[Gap]:
    """Every place where `b` parts from `a`, in prompt order, that has shared text behind it."""
    heads = [_listed(a, b, role) for role in LISTS]
    ahead = sum([len(part.text) for part in b.parts if part.role in LISTS])
    found = [
        replace(gap, chars_before=gap.chars_before + ahead, end_chars=gap.end_chars + ahead)
        for gap in _aligned(_texts(a), _texts(b))
    ]
    shared = common_parts(_texts(a), _texts(b))[1] + (found[0].later_chars if found else 0)
    lists = [replace(gap, run_chars=shared, later_chars=shared) for gap in heads if gap is not None]
    everything = shared + ahead
    roots = [
        Gap(name, "", None, 0, 0, 0, everything, everything, old, new, "", "", old, new, member=name)
        for name, old, new in _roots(a, b)
    ]
    return [*roots, *lists, *found]


def _texts(ask: Asked) -> list[Part]:
    return [part for part in ask.parts if part.role not in LISTS]


def _listed(a: Asked, b: Asked, role: str) -> Gap | None:
    """The first place where two lists of tools or documents part, whatever stands behind it."""
    first = [part for part in a.parts if part.role == role]
    second = [part for part in b.parts if part.role == role]
    if [part.text for part in first] == [part.text for part in second]:
        return None
    count, _ = common_parts(first, second)
    nothing = Part(f"{role}[{count}]", role, "")
    one = first[count] if count < len(first) else nothing
    other = second[count] if count < len(second) else nothing
    same = common_chars(one.text, other.text)
    tail = _common_end(one.text[same:], other.text[same:], min(len(one.text), len(other.text)) - same)
    low, high_a, high_b = _widened(one.text, other.text, same, tail)
    ahead = sum([len(part.text) for part in b.parts[: b.parts.index(other)]]) if other.text else 0
    return Gap(
        path=other.path,
        role=role,
        message=None,
        offset=same,
        chars_before=ahead + same,
        end_chars=sum([len(part.text) for part in b.parts if part.role in LISTS]),
        run_chars=0,
        later_chars=0,
        a_span=one.text[low:high_a],
        b_span=other.text[low:high_b],
        before=other.text[max(0, low - _ANCHOR) : low],
        after=other.text[high_b : high_b + _ANCHOR],
        a_line=one.text,
        b_line=other.text,
        a_parts=tuple(first),
        b_parts=tuple(second),
    )


def _roots(a: Asked, b: Asked) -> list[tuple[str, str, str]]:
    old, new = dict(a.roots), dict(b.roots)
    return [(name, old.get(name, ""), new.get(name, "")) for name in {**old, **new} if old.get(name) != new.get(name)]


def _units(parts: Sequence[Part]) -> list[_Unit]:
    units: list[_Unit] = []
    for number, part in enumerate(parts):
        units.append(_Unit(hashed(f"\x1e{part.role}\x1e{part.opaque}"), number, 0, 0))
        if part.opaque or part.role in LISTS:
            units.append(_Unit(hashed(part.text), number, 0, len(part.text)))
            continue
        start = 0
        for text in chunks(part.text):
            units.append(_Unit(hashed(text), number, start, len(text)))
            start += len(text)
    return units


def _aligned(a: Sequence[Part], b: Sequence[Part]) -> list[Gap]:
    first, second = _units(a), _units(b)
    keys, others = [unit.key for unit in first], [unit.key for unit in second]
    ahead = 0
    for one, other in zip(keys, others, strict=False):
        if one != other:
            break
        ahead += 1
    pairs = matched(keys, others, ahead)
    runs = [(i, j, size, sum([unit.chars for unit in second[j : j + size]])) for i, j, size in pairs]
    runs = [run for run in runs if run[3]]
    found: list[Gap] = []
    within: list[set[str]] = []
    gone: Counter[str] = Counter()
    come: Counter[str] = Counter()
    i_end = j_end = ahead
    for place, (i, j, size, chars) in enumerate(runs):
        later = sum([run[3] for run in runs[place:]])
        gap = _gap(a, b, (first[i_end:i], second[j_end:j]), (first[i], second[j]), chars, later)
        texts = (_stripped(a, first[i_end:i]), _stripped(b, second[j_end:j]))
        if gap is not None:
            found.append(gap)
            within.append({*texts[0], *texts[1]})
        gone.update(texts[0])
        come.update(texts[1])
        i_end, j_end = i + size, j + size
    gone.update(_stripped(a, first[i_end:]))
    come.update(_stripped(b, second[j_end:]))
    moved = sum([len(text) * count for text, count in (gone & come).items()])
    if found and moved > max(_LEAST_MOVED, 0.5 * sum([len(text) * count for text, count in gone.items()])):
        swapped = set(gone & come)
        at = next((place for place, texts in enumerate(within) if texts & swapped), 0)
        later = found[at].later_chars + moved
        total = sum([len(part.text) for part in b])
        return [*found[:at], replace(found[at], moved=True, end_chars=total, run_chars=later, later_chars=later)]
    return found


def _stripped(parts: Sequence[Part], units: list[_Unit]) -> list[str]:
    texts = [parts[unit.part].text[unit.start : unit.start + unit.chars].strip() for unit in units if unit.chars]
    return [text for text in texts if text]


def matched(keys: list[int], others: list[int], ahead: int) -> list[tuple[int, int, int]]:
    """Runs of equal units behind the common head: the common tail is cut off first, the rest is matched."""
    a, b = keys[ahead:], others[ahead:]
    tail = 0
    while tail < min(len(a), len(b)) and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    mid_a, mid_b = a[: len(a) - tail][:_MOST_CHUNKS], b[: len(b) - tail][:_MOST_CHUNKS]
    many = max(len(mid_a), len(mid_b)) > _MANY_CHUNKS  # then lines that come again and again start no match
    blocks = SequenceMatcher(None, mid_a, mid_b, autojunk=many).get_matching_blocks()
    runs = [(ahead + i, ahead + j, size) for i, j, size in blocks if size]
    if tail:
        runs.append((len(keys) - tail, len(others) - tail, tail))
    return runs


def _gap(
    a: Sequence[Part],
    b: Sequence[Part],
    between: tuple[list[_Unit], list[_Unit]],
    behind: tuple[_Unit, _Unit],
    run_chars: int,
    later_chars: int,
) -> Gap | None:
    gone, come = between
    if not gone and not come:
        return None
    start_a, start_b = (gone or behind[:1])[0], (come or behind[1:])[0]
    part_a, part_b = a[start_a.part], b[start_b.part]
    text_a = _stretch(part_a, start_a, gone, behind[0])
    text_b = _stretch(part_b, start_b, come, behind[1])
    same = common_chars(text_a, text_b)
    end = min(len(text_a), len(text_b)) - same
    tail = _common_end(text_a[same:], text_b[same:], end)
    low, high_a, high_b = _widened(text_a, text_b, same, tail)
    at = start_b.start + low
    stop = start_b.start + high_b
    line_start = part_b.text.rfind("\n", 0, at) + 1
    line_end = part_b.text.find("\n", stop)
    line_a_start = part_a.text.rfind("\n", 0, start_a.start + low) + 1
    line_a_end = part_a.text.find("\n", start_a.start + high_a)
    return Gap(
        path=part_b.path,
        role=part_b.role,
        message=part_b.message,
        offset=start_b.start + same,
        chars_before=sum([len(part.text) for part in b[: start_b.part]]) + start_b.start + same,
        end_chars=sum([len(part.text) for part in b[: behind[1].part]]) + behind[1].start,
        run_chars=run_chars,
        later_chars=later_chars,
        a_span=text_a[low:high_a],
        b_span=text_b[low:high_b],
        before=part_b.text[max(line_start if at > line_start else 0, at - _ANCHOR) : at],
        after=part_b.text[stop : stop + _ANCHOR],
        a_line=part_a.text[line_a_start : line_a_end if line_a_end >= 0 else None],
        b_line=part_b.text[line_start : line_end if line_end >= 0 else None],
        a_parts=_covered(a, gone),
        b_parts=_covered(b, come),
    )


def _stretch(part: Part, start: _Unit, units: list[_Unit], behind: _Unit) -> str:
    """The text of the gap within its first part."""
    if not units:
        return ""
    if behind.part == start.part and not (behind.start == 0 and behind.chars == 0):
        return part.text[start.start : behind.start]
    return part.text[start.start :]


def _covered(parts: Sequence[Part], units: list[_Unit]) -> tuple[Part, ...]:
    return tuple(parts[number] for number in sorted({unit.part for unit in units if unit.chars}))


def _common_end(a: str, b: str, most: int) -> int:
    count = 0
    while count < min(most, 4096) and a[-1 - count] == b[-1 - count]:
        count += 1
    return count


def _widened(a: str, b: str, same: int, tail: int) -> tuple[int, int, int]:
    """The differing span grown to whole words, in both texts."""
    low = same
    while low > 0 and _wordy(a[low - 1]):
        low -= 1
    grown = 0
    while grown < tail and _wordy(a[len(a) - tail + grown]):
        grown += 1
    return low, len(a) - tail + grown, len(b) - tail + grown


def _wordy(char: str) -> bool:
    return char.isalnum() or char in _WORD
