"""From a name to a policy: entry points of the group `router.policies`, or `module:attribute`.

A policy is a factory whose keyword parameters are its settings; the signature is their only definition. Ours and other
people's are found the same way, and only the one asked for is imported.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from pydantic import ConfigDict, ValidationError, create_model

from policies.errors import BadSettings, PolicyError, UnknownPolicy
from policies.types import Policy

GROUP = "router.policies"

Factory = Callable[..., Policy]


@dataclass(frozen=True, slots=True)
class Setting:
    """One keyword parameter of a policy."""

    name: str
    type: str
    default: object


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """What `router policies` says of an installed policy."""

    name: str
    distribution: str
    version: str
    summary: str
    settings: tuple[Setting, ...]
    problem: str = ""
    """Why it can't be used; empty when it can."""


def load(name: str, settings: Mapping[str, object] | None = None, seed: int = 0) -> Policy:
    """Make the policy called `name`. A factory with a `seed` parameter gets `seed` unless the settings say otherwise.

    Raises `UnknownPolicy`, `BadSettings`, or `PolicyError` when its code can't be imported or has no `choose`.
    """
    factory = _factory(name)
    given = dict(settings or {})
    if "seed" in inspect.signature(factory).parameters:
        given.setdefault("seed", seed)
    policy = factory(**_checked(name, factory, given))
    if not callable(getattr(policy, "choose", None)):
        raise PolicyError(f"policy {name!r} has no method choose(request, replicas)")
    return policy


def installed() -> tuple[PolicyInfo, ...]:
    """Every policy of the entry-point group, sorted by name; one that can't be imported says why."""
    return tuple(_info(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name))


def _factory(name: str) -> Factory:
    if ":" in name:
        return _imported(name, name)
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in entries:
        return _imported(name, entries[name].value)
    close = difflib.get_close_matches(name, entries, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise UnknownPolicy(f"no policy is named {name!r}{hint} Installed: {', '.join(sorted(entries)) or 'none'}")


def _imported(name: str, reference: str) -> Factory:
    module_name, _, attribute = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs other people's code
        raise PolicyError(f"policy {name!r} ({reference}) can't be imported: {error}") from error
    if not callable(found):
        raise PolicyError(f"policy {name!r} ({reference}) is a {type(found).__name__}, not a class or function")
    try:
        inspect.signature(found, eval_str=True)
    except (NameError, ValueError) as error:
        raise PolicyError(f"policy {name!r} ({reference}) has no readable signature: {error}") from error
    return cast("Factory", found)


def _parameters(factory: Factory) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in inspect.signature(factory, eval_str=True).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def _checked(name: str, factory: Factory, given: Mapping[str, object]) -> dict[str, Any]:
    """The settings, coerced to the types in the signature."""
    parameters = _parameters(factory)
    known = [parameter.name for parameter in parameters]
    for setting in given:
        if setting not in known:
            close = difflib.get_close_matches(setting, known, n=1, cutoff=0.4)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise BadSettings(f"policy {name!r} has no setting {setting!r}{hint} It has: {', '.join(known) or 'none'}")
    fields: dict[str, Any] = {
        parameter.name: (
            Any if parameter.annotation is parameter.empty else parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in parameters
    }
    model = create_model(
        "Settings",
        __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()),
        **fields,
    )
    try:
        checked = model(**given)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise BadSettings(f"policy {name!r} can't take these settings: {told}") from None
    return {setting: getattr(checked, setting) for setting in known}


def _info(entry: EntryPoint) -> PolicyInfo:
    distribution = entry.dist.name if entry.dist is not None else "unknown"
    version = entry.dist.version if entry.dist is not None else "unknown"
    try:
        factory = _imported(entry.name, entry.value)
    except PolicyError as error:
        return PolicyInfo(entry.name, distribution, version, "", (), str(error))
    summary = (inspect.getdoc(factory) or "").partition("\n")[0]
    settings = tuple(
        Setting(
            parameter.name,
            inspect.formatannotation(parameter.annotation) if parameter.annotation is not parameter.empty else "any",
            None if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in _parameters(factory)
    )
    return PolicyInfo(entry.name, distribution, version, summary, settings)
