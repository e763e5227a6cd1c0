"""`router tenants add|list|rotate|remove`: the tenants file from the command line.

The one rule: a new key is printed once, alone on standard output, and nowhere else. Not here: the changes themselves
(`tenant_file`).
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from router.arguments import Arguments, count, json_argument

_OVERLAP_S = 86_400.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """What may be written after `router tenants`."""
    actions = parser.add_subparsers(dest="action", metavar="add|list|rotate|remove", required=True)
    told = {
        "add": "add a tenant and print its key, which is shown this once",
        "list": "list tenants, their groups, limits and keys' hashes",
        "rotate": "give a tenant a new key and print it; the old ones last a while longer",
        "remove": "take a tenant out, at once",
    }
    made = {}
    for action, summary in told.items():
        made[action] = parser_of = actions.add_parser(action, help=summary, description=summary)
        if action != "list":
            parser_of.add_argument("name", metavar="NAME", help="the tenant")
        file = "the tenants file (TOML)" + ("; made if need be" if action == "add" else "")
        parser_of.add_argument("--tenants", type=Path, metavar="FILE", required=True, help=file)
    add = made["add"].add_argument
    add("--salt-group", default="", metavar="GROUP", help="share the prefix cache with the other tenants of this group")
    add("--requests-per-minute", type=count(1), metavar="COUNT", help="limit (none)")
    add("--tokens-per-minute", type=count(1), metavar="COUNT", help="limit of prompt and output tokens (none)")
    add("--in-flight", type=count(1), metavar="COUNT", help="limit of requests at a time (none)")
    made["rotate"].add_argument(
        "--overlap",
        type=_seconds,
        default=_OVERLAP_S,
        metavar="S",
        help="how long the old keys go on to work; 0 ends them now (%(default)g)",
    )
    json_argument(made["list"])


def run(given: Arguments) -> int:
    """Do it."""
    actions = {"add": _add, "list": _list, "rotate": _rotate, "remove": _remove}
    return actions[given.action](given)


def _add(given: Arguments) -> int:
    from router.tenant_file import added, edited
    from router.tenant_keys import Quota

    quota = Quota(given.requests_per_minute, given.tokens_per_minute, given.in_flight)
    key = edited(given.tenants, lambda document: added(document, given.name, given.salt_group, quota))
    return _shown(key, f"tenant {given.name} is in {given.tenants}; this is its key, it is not shown again:")


def _rotate(given: Arguments) -> int:
    from router.tenant_file import edited, rotated

    now = datetime.now(UTC)
    key = edited(given.tenants, lambda document: rotated(document, given.name, now, given.overlap))
    return _shown(key, f"tenant {given.name} has a new key, not shown again; the old ones end in {given.overlap:g} s:")


def _remove(given: Arguments) -> int:
    from router.tenant_file import edited, removed

    edited(given.tenants, lambda document: removed(document, given.name))
    sys.stderr.write(f"tenant {given.name} is out\n")
    return 0


def _list(given: Arguments) -> int:
    from router.tenant_keys import read

    register = read(given.tenants)
    rows = [_row(told, datetime.now(UTC).timestamp()) for told in register.told()]
    if given.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("tenant", "keys", "salt group", "requests/min", "tokens/min", "in flight")
    for row in rows:
        keys = ", ".join(_short(key) for key in row["keys"])
        limits = (row["requests_per_minute"], row["tokens_per_minute"], row["in_flight"])
        table.add_row(row["name"], keys or "none", row["salt_group"] or "none", *(str(one or "none") for one in limits))
    Console().print(table)
    return 0


def _short(key: dict[str, Any]) -> str:
    until = f" until {key['expires']}" if key["expires"] else ""
    return f"{key['hash'][:15]}…{until}"


def _row(told: Any, now_s: float) -> dict[str, Any]:
    tenant, keys = told
    quota = tenant.quota
    return {
        "name": tenant.name,
        "salt_group": tenant.salt_group or None,
        "requests_per_minute": quota.requests_per_minute,
        "tokens_per_minute": quota.tokens_per_minute,
        "in_flight": quota.in_flight,
        "keys": [
            {
                "hash": "sha256:" + key.digest.hex(),
                "expires": None
                if key.expires_s is None
                else datetime.fromtimestamp(key.expires_s, UTC).isoformat(timespec="seconds"),
                "works": key.expires_s is None or now_s < key.expires_s,
            }
            for key in keys
        ],
    }


def _shown(key: str, told: str) -> int:
    sys.stderr.write(told + "\n")
    sys.stderr.flush()
    sys.stdout.write(key + "\n")
    return 0


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 10**9:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value
