"""One request as a trace tells of it, and how a row's members are read.

The one rule: a row says what its trace says and nothing more; what it does not say is None. A member that can't be what
it must be makes a `BadRow` with a reason that holds no value of the row, so that reasons can be counted. Not here:
which members a format has, and what becomes of a bad row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from sim.errors import SimError
from sim.traces.runs import Runs

Item = Mapping[str, Any]
"""One JSON object or one CSV row by its header."""


class TraceError(SimError):
    """A trace that can't be read: says file, line (or place in a list) and reason."""


class BadRow(Exception):  # noqa: N818 -- the name says what it is
    """A row that can't be read; `reason` is one of few, `detail` may hold numbers of the row."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class LeftOut(BadRow):
    """A good row that is no request an engine answered, such as a failed one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client sent: tokens and blocks are still to be made of it."""

    route: str
    body: Item
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace. Either `runs` or `ask` tells its prefix, or nothing does."""

    time_s: float | None
    """On the trace's own clock, or from the session's start."""
    prompt_tokens: int | None
    """None when `ask` is to be counted."""
    output_tokens: int | None
    runs: Runs | None = None
    """Block ids of the prompt; the last may be of a block that is not full."""
    scope: str = ""
    """Equal ids in different scopes are different blocks."""
    block_tokens: int | None = None
    """Tokens of a block, when the row says."""
    ask: Ask | None = None
    head_tokens: int = 0
    """Length of the tools and system prompt, in the first row of a scope."""
    session: str | None = None
    user: str | None = None
    tenant: str = ""
    route: str = ""
    model: str = ""
    think_s: float | None = None
    """Seconds since the session's previous answer ended."""
    took_s: float | None = None
    """Seconds from sending to the last token, as measured."""
    ttft_s: float | None = None
    cached_tokens: int | None = None


def present(item: Item, *names: str) -> Any:
    """The first of the members that is there and not null."""
    for name in names:
        value = item.get(name)
        if value is not None:
            return value
    return None


def tokens(item: Item, *names: str) -> int:
    """A required count. Raises `BadRow`."""
    found = tokens_or_none(item, *names)
    if found is None:
        raise BadRow(f"{names[0]} is missing")
    return found


def tokens_or_none(item: Item, *names: str) -> int | None:
    value = present(item, *names)
    if value is None or value == "":
        return None
    number = _number(value, names[0])
    if number < 0:
        raise BadRow(f"{names[0]} is negative")
    if number != int(number):
        raise BadRow(f"{names[0]} is no whole number")
    return int(number)


def seconds(item: Item, name: str, unit_s: float = 1.0) -> float:
    """A required number of `unit_s`, in seconds. Raises `BadRow`."""
    found = seconds_or_none(item, name, unit_s)
    if found is None:
        raise BadRow(f"{name} is missing")
    return found


def seconds_or_none(item: Item, name: str, unit_s: float = 1.0) -> float | None:
    value = item.get(name)
    if value is None or value == "":
        return None
    return _number(value, name) * unit_s


def _number(value: object, name: str) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise BadRow(f"{name} is no number") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadRow(f"{name} is no number")
    return value


def moment(item: Item, *names: str) -> float | None:
    """A time of day as seconds since the epoch: a number of seconds, or ISO text, UTC when it names no zone."""
    value = present(item, *names)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        return _number(value, names[0])
    try:
        told = datetime.fromisoformat(value)
    except ValueError:
        raise BadRow(f"{names[0]} is no time") from None
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()


def name_of(item: Item, *names: str) -> str | None:
    """A member that names something: text, or a number as text."""
    value = present(item, *names)
    return str(value) if isinstance(value, str | int) and value != "" else None


def members(item: Item, name: str) -> Item:
    """A required object. Raises `BadRow`."""
    value = item.get(name)
    if not isinstance(value, Mapping):
        raise BadRow(f"{name} is no object")
    return value


def members_or_none(item: Item, name: str) -> Item:
    """An object that may be missing or null, and is empty then. Raises `BadRow` for what is none."""
    return {} if item.get(name) is None else members(item, name)


def objects(item: Item, name: str) -> Sequence[Item]:
    """A required list of objects. Raises `BadRow`."""
    found = listed(item, name)
    if not all(isinstance(one, Mapping) for one in found):
        raise BadRow(f"{name} holds something that is no object")
    return found


def required_name(item: Item, name: str) -> str:
    """A required name. Raises `BadRow`."""
    found = name_of(item, name)
    if found is None:
        raise BadRow(f"{name} is missing")
    return found


def listed(item: Item, name: str) -> Sequence[Any]:
    """A required list. Raises `BadRow`."""
    value = item.get(name)
    if not isinstance(value, list | tuple):
        raise BadRow(f"{name} is no list")
    return value
