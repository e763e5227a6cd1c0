"""The command line of `router`: what is written there, and what is said when it can't be used.

The one rule: a flag that stands for a setting takes its help and its default from that setting. Not here: the commands.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from router.config import Config

FLAGS = {
    "--replicas": "replicas",
    "--policy": "policy.name",
    "--shadow": "policy.shadow",
    "--host": "listen.host",
    "--port": "listen.port",
    "--admin-port": "admin.port",
    "--tokenizer": "tokenizer.path",
    "--kv-events": "kv_events",
    "--log-level": "log.level",
    "--record": "record.path",
    "--tenants": "tenants.file",
    "--salt-secret-file": "tenants.salt_secret_file",
    "--replica-key-env": "replica_key_env",
}
"""Flags that stand for one setting each; everything else goes through `--set`."""

Arguments = argparse.Namespace


class Unusable(Exception):  # noqa: N818 -- becomes a UsageError's text
    """What argparse has to complain about."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Unusable(f"{message}; see `{self.prog} --help`")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: a line of help, its arguments, and what it does."""

    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Arguments], int]


def parsed(words: list[str], commands: Mapping[str, Command]) -> Arguments:
    """The arguments of the command that was asked for, as `command`. Raises `Unusable` with a text for the user."""
    from router import __version__
    from router.core import CORE

    parser = Parser(prog="router", description="A prefix-aware reverse proxy for fleets of vLLM replicas.")
    parser.add_argument("--version", action="version", version=f"prefix-router {__version__}, {CORE} core")
    added = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    asked = next((word for word in words if not word.startswith("-")), None)
    if asked is not None and asked not in commands:
        close = get_close_matches(asked, commands, n=1)
        hint = f"did you mean {close[0]}?" if close else f"commands: {', '.join(commands)}"
        raise Unusable(f"there is no command {asked[:40]!r}; {hint}")
    for name, command in commands.items():
        sub = added.add_parser(
            name,
            help=command.summary,
            description=command.summary[:1].upper() + command.summary[1:] + ".",
            allow_abbrev=False,
        )
        sub.set_defaults(command=command)
        if name == asked:
            command.arguments(sub)
    if asked is None and not words:
        parser.print_help()
        raise SystemExit(2)
    prog = f"router {asked or ''}".rstrip()
    try:
        arguments, rest = parser.parse_known_args(words)
    except Unusable:  # often because of what stands after a flag that is not there
        known = _flags(commands.get(asked or ""))
        strange = next((word for word in words if word.startswith("--") and word.partition("=")[0] not in known), None)
        if asked is None or strange is None:
            raise
        raise Unusable(_unknown(strange, known, prog)) from None
    if rest:
        raise Unusable(_unknown(rest[0], _flags(commands.get(asked or "")), prog))
    if asked is None:
        raise Unusable(f"say what to do; commands: {', '.join(commands)}")
    return arguments


def _flags(command: Command | None) -> list[str]:
    """Every flag of a command and of the commands below it."""
    probe = Parser(add_help=True)
    if command is not None:
        command.arguments(probe)
    found: list[str] = []
    parsers: list[argparse.ArgumentParser] = [probe]
    while parsers:
        for action in parsers.pop()._actions:  # argparse has no other list
            found += action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return found


def _unknown(word: str, known: Sequence[str], prog: str) -> str:
    close = get_close_matches(word.partition("=")[0], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"see `{prog} --help`"
    return f"{prog} does not know {word.partition('=')[0][:60]!r}; {hint}"


def configuration_arguments(parser: argparse.ArgumentParser) -> None:
    from router.settings import settings

    described = {setting.name: setting for setting in settings()}
    for flag, name in FLAGS.items():
        setting = described[name]
        told = f"{setting.description} ({setting.default})".replace("%", "%%")
        action = "append" if setting.type == "list" else "store"
        parser.add_argument(flag, dest=name, metavar="VALUE", help=told, action=action)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting; `router config` lists them"
    )


def configuration(arguments: Arguments) -> "tuple[Config, dict[str, str]]":
    """The configuration from every source, and where each value came from."""
    from router.config import load

    given = {name: (flag, value) for flag, name in FLAGS.items() if (value := getattr(arguments, name)) is not None}
    return load(arguments.config, arguments.set, os.environ, given)


def json_argument(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, alone on stdout")


def count(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    whole.__name__ = "whole number"
    return whole


def event_port(text: str) -> int | None:
    """A port, 0 for `auto`, None for `off`."""
    if text in ("auto", "off"):
        return 0 if text == "auto" else None
    if not text.isdecimal() or not 0 < int(text) < 65_535:
        raise argparse.ArgumentTypeError(f"{text} is neither auto nor off nor a port with one after it")
    return int(text)


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value
