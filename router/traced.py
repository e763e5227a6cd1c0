"""Strings that remember what a chat template does with them, and a sandbox that lets nothing happen behind their back.

A `Traced` string stands for the content of one message. What a template asks of it (`in`, `startswith`, truth) is
answered for the content at hand and noted as a guard; what it makes of it (`strip`, `+`) is noted too. Another content
for which every guard gives the same answers takes the same way through the template, so its text can be put together
without running it. The one rule: whatever could look at a content without being noted raises `Untraceable`.
Not here: who keeps what was noted (`render_plans`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jinja2.compiler
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from router.places import SPLITTING, Guard, Place, asked

CHANGING = frozenset(["strip", "lstrip", "rstrip", "replace", "lower", "upper", "title"])
_ASKING = frozenset(["startswith", "endswith"])
_TYPE_TESTS = frozenset(
    ["string", "defined", "undefined", "none", "mapping", "iterable", "sequence", "boolean", "true", "false", "number"]
)
_SHALLOW_FILTERS = frozenset(["length", "count", "list", "first", "last", "reverse", "default", "d"])
_JINJA_OWN = ("_block_vars", "_loop_vars")  # what jinja2 adds to calls, for functions that take the context
_TOO_DEEP = 6
_LOST = "\ue0f1?\uf8a2"  # the text of every traced string: seen nowhere but where a trace was lost


class Untraceable(Exception):  # noqa: N818 -- named after what it says
    """The template does something with a content that can't be followed."""


@dataclass(slots=True)
class Trace:
    """What has been noted so far."""

    contents: list[str]
    guards: list[Guard] = field(default_factory=list)
    dates: list[tuple[str, str]] = field(default_factory=list)

    def asked(self, place: Place, question: str, arguments: tuple[Any, ...]) -> bool:
        answer = asked(place.of(self.contents), question, arguments)
        self.guards.append(Guard(place, question, arguments, answer))
        return answer


def _blind(*_: object, **__: object) -> NoReturn:
    raise Untraceable


class Joined(str):
    """Text put together from literal text and places. It can be put together further, and printed; nothing else."""

    pieces: tuple["str | Place", ...]

    __slots__ = ("pieces",)

    @classmethod
    def of(cls, pieces: Iterable["str | Place"]) -> "Joined":
        made = cls(_LOST)
        made.pieces = tuple(pieces)
        return made

    def __add__(self, other: Any) -> "Joined":
        return Joined.of((*pieces_of(self), *pieces_of(other)))

    def __radd__(self, other: Any) -> "Joined":
        return Joined.of((*pieces_of(other), *pieces_of(self)))

    def __str__(self) -> str:
        return self


class Traced(Joined):
    """One place, which may be asked and changed as well."""

    place: Place
    trace: Trace

    __slots__ = ("place", "trace")

    @classmethod
    def at(cls, place: Place, trace: Trace) -> "Traced":
        made = cls(_LOST)
        made.pieces, made.place, made.trace = (place,), place, trace
        return made

    def called(self, name: str, arguments: tuple[Any, ...]) -> "bool | Traced | _Split":
        """A string method of the content."""
        if not all(type(argument) in (str, int) for argument in arguments):
            raise Untraceable
        if name in CHANGING:
            return self.changed(name, arguments)
        if name in SPLITTING:
            return _Split(self, name, arguments)
        return self.trace.asked(self.place, name, arguments)

    def changed(self, name: str, arguments: tuple[Any, ...]) -> "Traced":
        return Traced.at(Place(self.place.message, (*self.place.changes, (name, arguments))), self.trace)

    def __bool__(self) -> bool:
        return self.trace.asked(self.place, "", ())

    def _compared(self, other: object, question: str) -> bool:
        if type(other) is str:
            return self.trace.asked(self.place, question, (other,))
        if isinstance(other, str):
            raise Untraceable
        return question == "__ne__"  # no string equals what is no string

    def __contains__(self, other: object) -> bool:
        return self._compared(other, "__contains__")

    def __eq__(self, other: object) -> bool:
        return self._compared(other, "__eq__")

    def __ne__(self, other: object) -> bool:
        return self._compared(other, "__ne__")

    def __hash__(self) -> NoReturn:
        raise Untraceable

    def startswith(self, *arguments: Any) -> bool:
        return bool(self.called("startswith", arguments))


_HIDDEN = ("bool", "contains", "eq", "ne", "hash", "len", "iter", "getitem", "lt", "le", "gt", "ge")
_JOINED_ONLY = ("mod", "rmod", "mul", "rmul", "format")

for _name in (*_HIDDEN, *_JOINED_ONLY):
    setattr(Joined, f"__{_name}__", _blind)
for _name in (name for name in dir(str) if not name.startswith("_")):
    setattr(Joined, _name, _blind)


def pieces_of(value: Any) -> tuple["str | Place", ...]:
    """What a string is put together from."""
    if isinstance(value, Joined):
        return value.pieces
    if type(value) is str:
        return (value,)
    raise Untraceable


def _holds_traced(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Joined | _Split | _Method) or depth > _TOO_DEEP:
        return True
    if isinstance(value, Mapping):
        return any(_holds_traced(inner, depth + 1) for inner in value.values())
    return isinstance(value, list | tuple) and any(_holds_traced(inner, depth + 1) for inner in value)


class _Method:
    """A string method of a traced content, taken but not called yet."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Traced, name: str) -> None:
        self.owner = owner
        self.name = name


class _Split:
    """A traced content split; its first or last part can be taken, and nothing else."""

    __slots__ = ("arguments", "name", "owner")

    def __init__(self, owner: Traced, name: str, arguments: tuple[Any, ...]) -> None:
        self.owner = owner
        self.name = name
        self.arguments = arguments

    def part(self, place: int) -> Traced:
        """The first or the last part: every split by a separator has them."""
        if place not in (0, -1) or not self.arguments or not self.arguments[0]:
            raise Untraceable
        return self.owner.changed(self.name, (place, *self.arguments))

    def __getattr__(self, _: str) -> NoReturn:
        raise Untraceable


for _name in (*_HIDDEN, "str"):
    setattr(_Split, f"__{_name}__", _blind)


class _Generator(jinja2.compiler.CodeGenerator):
    """Has `~` join through the environment, as `+` and printing do."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:  # noqa: N802 -- jinja2's name
        self.write("environment.concat(map(str, (")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write(")))")


class TracingSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox in which traced strings can be followed. Its filters and tests are wrapped by `watched`."""

    code_generator_class = _Generator

    @staticmethod
    def concat(pieces: Iterable[Any]) -> Any:
        """What jinja2 joins printed values by."""
        found: list[str | Place] = []
        for piece in pieces:
            found += pieces_of(piece)
        return Joined.of(found) if any(type(piece) is Place for piece in found) else "".join(map(str, found))

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self._of_traced(obj, attribute) if isinstance(obj, Joined | _Split) else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, _Split) and type(argument) is int:
            return obj.part(argument)
        if isinstance(obj, Joined | _Split) or isinstance(argument, Joined):
            raise Untraceable
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = {name: value for name, value in kwargs.items() if name not in _JINJA_OWN}
        if isinstance(obj, _Method):
            if given:
                raise Untraceable
            return obj.owner.called(obj.name, args)
        known = isinstance(obj, jinja2.runtime.Macro | jinja2.runtime.LoopContext) or obj is jinja2.utils.Namespace
        if not known and (_holds_traced(args) or _holds_traced(given)):
            raise Untraceable
        return super().call(context, obj, *args, **kwargs)

    @staticmethod
    def _of_traced(obj: Joined | _Split, attribute: str) -> _Method:
        if isinstance(obj, Traced) and attribute in (CHANGING | _ASKING | SPLITTING):
            return _Method(obj, attribute)
        raise Untraceable


def watched(environment: TracingSandbox) -> None:
    """Let no filter and no test see a traced string but those known to be followed."""
    for name, filter_ in list(environment.filters.items()):
        environment.filters[name] = _watched_filter(name, filter_)
    for name, test in list(environment.tests.items()):
        environment.tests[name] = _watched_test(name, test)


def _watched_filter(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        if name == "trim" and len(args) == 1 and not kwargs and isinstance(args[0], Traced):
            return args[0].called("strip", ())
        if name in _SHALLOW_FILTERS and not any(isinstance(value, Joined | _Split | _Method) for value in args):
            return filter_(*args, **kwargs)
        if _holds_traced(args) or _holds_traced(kwargs):
            raise Untraceable
        return filter_(*args, **kwargs)

    return _like(filter_, checked)


def _watched_test(name: str, test: Any) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        if name not in _TYPE_TESTS and (_holds_traced(args) or _holds_traced(kwargs)):
            raise Untraceable
        return test(*args, **kwargs)

    return _like(test, checked)


def _like(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Keep jinja2's marks for functions that take the context or the environment first."""
    wrapper.__dict__.update(getattr(original, "__dict__", {}))
    return wrapper
