"""Where settings are written: a TOML file, environment variables, `--set key=value`.

The one rule: these only read; whether a name exists and what its text means is settled by `config`.
"""

import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from router.errors import ConfigError

PREFIX = "ROUTER_"

Given = tuple[str, str, object]
"""Origin, dotted name, value."""


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper().replace(".", "__")


def from_file(file: Path | None, sections: Container[str]) -> Iterator[Given]:
    """A TOML file; a table that is not one of `sections` is a value."""
    if file is None:
        return
    try:
        tree = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"configuration file {str(file)!r} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {str(file)!r} is not TOML: {error}") from None
    yield from ((f"file {file}", name, value) for name, value in _leaves(tree, sections))


def _leaves(tree: Mapping[str, Any], sections: Container[str], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name in sections:
            yield from _leaves(value, sections, name + ".")
        else:
            yield name, value


def from_environment(environment: Mapping[str, str], names: Sequence[str]) -> Iterator[Given]:
    """Variables of ours. Others are left alone: Kubernetes makes ROUTER_PORT and more for a service named `router`."""
    loose = {name.replace(".", "").replace("_", ""): name for name in names}
    for told in sorted(environment):
        if not told.startswith(PREFIX):
            continue
        name = told.removeprefix(PREFIX).lower().replace("__", ".")
        meant = loose.get(name.replace(".", "").replace("_", ""))
        if "." in name or name in names:
            yield f"environment {told}", name, environment[told]
        elif meant is not None:
            raise ConfigError(f"environment variable {told} is not a setting; write {variable(meant)}")


def from_sets(sets: Iterable[str]) -> Iterator[Given]:
    """`--set key=value`, in order."""
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                "--set takes key=value, for example --set health.interval_s=2"
            )  # the text may be a secret
        yield "--set", name.strip(), value.strip()


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Close names: by spelling, or the same last word elsewhere in the tree."""
    last = name.rpartition(".")[2]
    close = [known for known in names if known.rpartition(".")[2] == last]
    close = close or get_close_matches(name, names, n=2, cutoff=0.7)
    close = close or [known for known in names if get_close_matches(last, [known.rpartition(".")[2]], n=1, cutoff=0.75)]
    return f"; did you mean {' or '.join(close[:3])}?" if close else "; `router config` lists them all"
