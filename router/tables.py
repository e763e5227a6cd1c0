"""What commands print: tables for people, JSON for machines.

The one rule: with `as_json` stdout holds one JSON document and nothing else. Not here: finding out what to print.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from policies.plugins import installed
from router.check import Checkup
from router.config import Config
from router.settings import settings, shown, values


def print_policies(*, as_json: bool) -> int:
    found = installed()
    if as_json:
        return _json({"policies": [asdict(policy) for policy in found]})
    rows = []
    for policy in found:
        told = policy.problem or policy.summary
        names = ", ".join(f"{setting.name}={shown(setting.default)}" for setting in policy.settings)
        rows.append((policy.name, told, names, f"{policy.distribution} {policy.version}"))
    _table(("policy", "what it does", "settings", "from"), rows)
    return 0


def print_config(config: Config, origins: Mapping[str, str], *, as_json: bool) -> int:
    effective = values(config)
    if as_json:
        told = config.model_dump(mode="json")
        return _json({"config": told, "origins": {name: origins.get(name, "default") for name in effective}})
    rows = [
        (setting.name, shown(effective[setting.name]), origins.get(setting.name, "default"), setting.description)
        for setting in settings()
    ]
    _table(("setting", "value", "from", "what it is"), rows)
    return 0


def print_check(checkup: Checkup, *, as_json: bool) -> int:
    """1 when something would go wrong."""
    code = 0 if checkup.fine else 1
    if as_json:
        _json(asdict(checkup) | {"fine": checkup.fine})
        return code
    rows = [
        (
            replica.name,
            replica.url,
            ", ".join(replica.models) or "–",
            _or_dash(replica.capacity_blocks, replica.block_tokens),
            f"{replica.tokens} ({replica.tokens_reason})" if replica.tokens else "–",
            f"{replica.cache} ({replica.cache_reason})" if replica.cache else "–",
            "ok" if not replica.problems else f"{len(replica.problems)} below",
        )
        for replica in checkup.replicas
    ]
    _table(("replica", "url", "serves", "blocks × tokens", "tokens", "cache", "problems"), rows)
    console = _console()
    for replica in checkup.replicas:
        for problem in replica.problems:
            console.print(Text(f"problem: replica {replica.name} {problem}"))
        for note in replica.notes:
            console.print(Text(f"note: replica {replica.name} {note}"))
        if replica.proof is not None:
            console.print(Text(f"probe: replica {replica.name}: {replica.proof.shown()}"))
    for problem in checkup.problems:
        console.print(Text(f"problem: {problem}"))
    for note in checkup.notes:
        console.print(Text(f"note: {note}"))
    return code


def print_explained(told: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        return _json(told)
    console = _console()
    tokens, blocks = told["tokens"], told["blocks"]
    reason = f" ({tokens['reason']})" if tokens.get("reason") else ""
    console.print(Text(f"{told['route']} for {told.get('model') or 'any model'}"))
    console.print(Text(f"{tokens['prompt']} prompt tokens, {tokens['basis']}{reason}"))
    console.print(Text(f"{blocks['count']} blocks of {blocks['block_tokens']} tokens may hit"))
    for name in ("user", "session"):
        if told.get(name):
            console.print(Text(f"{name}: {told[name][:80]}"))
    if "replicas" not in told:
        return 0
    chosen, costs = told["choice"]["replica"], told.get("costs") or {}
    rows = [
        (
            ("→ " if row["name"] == chosen else "  ") + row["name"],
            *(str(row[key]) for key in ("matched_tokens", "in_flight", "pending_prefill_tokens", "held_blocks")),
            shown(row.get("capacity_blocks")),
            f"{costs[row['name']]:.0f}" if row["name"] in costs else "–",
        )
        for row in told["replicas"]
    ]
    _table(("replica", "matched tokens", "in flight", "pending tokens", "held blocks", "capacity", "cost"), rows)
    console.print(Text(f"choice: {chosen}, because {told['choice']['reason']}"))
    return 0


def _json(document: object) -> int:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    sys.stdout.buffer.write(orjson.dumps(document, option=options, default=str))
    sys.stdout.flush()
    return 0


def _console() -> Console:
    """Rich's console; where stdout is no terminal, wide enough not to fold anything."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200, soft_wrap=not sys.stdout.isatty())


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def _or_dash(blocks: int | None, tokens: int | None) -> str:
    return "–" if blocks is None else f"{blocks} × {shown(tokens)}"
