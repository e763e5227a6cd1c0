"""Changes to the tenants file: a tenant added, its key rotated, a tenant removed.

The one rule: what a person wrote (comments, order, limits) stays; a key is made here, told once, and only its hash is
written. The file is replaced in one step, so that no router ever reads half of it. Not here: reading it
(`tenant_keys`), and the command line (`tenants_cli`).
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import tomlkit
from msgspec.structs import asdict

from router.errors import ConfigError, UsageError
from router.tenant_keys import Quota, bad_name, good_name, hashed, new_key, parsed

T = TypeVar("T")

_HEAD = "# Tenants of prefix-router. Keys are kept as hashes; `router tenants` adds, rotates and removes them.\n\n"


def added(document: tomlkit.TOMLDocument, name: str, group: str, quota: Quota) -> str:
    """Add a tenant; returns its key. Raises `UsageError` for a name that is bad or taken."""
    if not good_name(name):
        raise UsageError(bad_name(name))
    if group and not good_name(group):
        raise UsageError(bad_name(group))
    tenants = document.setdefault("tenants", tomlkit.table(is_super_table=True))
    if name in tenants:
        raise UsageError(f"tenant {name!r} is there already; `router tenants rotate {name}` gives it a new key")
    key = new_key()
    entry = tomlkit.table()
    entry["keys"] = _listed([_entry(key)])
    if group:
        entry["salt_group"] = group
    for limit, value in asdict(quota).items():
        if value is not None:
            entry[limit] = value
    tenants[name] = entry
    return key


def rotated(document: tomlkit.TOMLDocument, name: str, now: datetime, overlap_s: float) -> str:
    """Give a tenant a new key; its others end after `overlap_s`, or when they would have. Returns the new key."""
    entry = _known(document, name)
    ends = (now + timedelta(seconds=overlap_s)).replace(microsecond=0)
    kept = []
    for old in entry.get("keys", []):
        expires = old.get("expires")
        until = ends if expires is None else min(ends, _aware(expires))
        if until > now:
            kept.append({"hash": str(old["hash"]), "expires": until})
    key = new_key()
    entry["keys"] = _listed([*kept, _entry(key)])
    return key


def removed(document: tomlkit.TOMLDocument, name: str) -> None:
    """Take a tenant out, keys and all."""
    _known(document, name)
    tenants: Any = document["tenants"]
    del tenants[name]
    if not tenants:  # the table itself says that nobody is meant to be in
        document["tenants"] = tomlkit.table()


def edited(path: Path, change: Callable[[tomlkit.TOMLDocument], T]) -> T:
    """Read the file, change it, replace it in one step. Raises `ConfigError` for a file that can't be used."""
    with _alone(path):
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raw = (_HEAD + "[tenants]\n").encode()
            mode = 0o600
        else:
            mode = path.stat().st_mode & 0o777
        parsed(raw, str(path))
        document = tomlkit.parse(raw.decode("utf-8-sig"))
        result = change(document)
        text = tomlkit.dumps(document).encode("utf-8")
        parsed(text, str(path))
        _replaced(path, text, mode)
    return result


def _known(document: tomlkit.TOMLDocument, name: str) -> Any:
    tenants: Any = document.get("tenants", {})
    if name not in tenants:
        raise UsageError(f"there is no tenant {name[:100]!r}; `router tenants list` tells who is")
    return tenants[name]


def _entry(key: str) -> dict[str, object]:
    return {"hash": hashed(key)}


def _listed(entries: list[dict[str, object]]) -> tomlkit.items.Array:
    listed = tomlkit.array()
    for entry in entries:
        item = tomlkit.inline_table()
        item.update(entry)
        listed.append(item)
    return listed.multiline(len(entries) > 1)


def _aware(when: datetime) -> datetime:
    return when if when.tzinfo is not None else when.astimezone(UTC)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other `router tenants` changes files of this folder meanwhile."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"the folder of {str(path)!r} can't be opened: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replaced(path: Path, data: bytes, mode: int) -> None:
    target = path.resolve()
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    new = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(number)
        new.chmod(mode)
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
