"""The settings as tables show them: `router config`, `--help`, the README.

The one rule: nothing is written here that `config` says already. Not here: where values come from.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from router.config import Config, fields
from router.sections import ReplicaAddress
from router.sources import variable


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as the README, `router config` and `--help` show it."""

    name: str
    type: str
    default: str
    description: str

    @property
    def variable(self) -> str:
        return variable(self.name)


def settings() -> tuple[Setting, ...]:
    """Every setting, in the order of the tree."""
    return tuple(
        Setting(name, shown_type(field), shown(field.get_default(call_default_factory=True)), field.description or "")
        for name, field in fields(Config)
    )


def values(config: Config) -> dict[str, Any]:
    """Effective value of every setting by its dotted name."""
    found = {}
    for name, _ in fields(Config):
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = value
    return found


def shown_type(field: FieldInfo) -> str:
    """A setting's type in words."""
    annotation = field.annotation
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " · ".join(parts)
    optional = type(None) in parts
    kinds = [part for part in parts if part is not type(None)] if optional else [annotation]
    name = str(kinds[0]) if kinds else ""
    word = next(
        (
            word
            for key, word in (
                ("dict", "table"),
                ("tuple", "list"),
                ("bool", "yes/no"),
                ("int", "integer"),
                ("float", "number"),
                ("str", "text"),
            )
            if key in name
        ),
        "text",
    )
    return f"{word} or none" if optional else word


def shown(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, ReplicaAddress):
        return f"{value.name}={value.url}"
    if isinstance(value, tuple | list):
        return ", ".join(shown(part) for part in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}={shown(part)}" for key, part in value.items()) or "none"
    return str(value)
