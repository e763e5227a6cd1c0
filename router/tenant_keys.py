"""The tenants file: who may come in, by which keys, within which limits.

    [tenants.acme]
    keys = [{ hash = "sha256:…" }, { hash = "sha256:…", expires = 2027-01-01T00:00:00Z }]
    salt_group = "group-a"
    requests_per_minute = 600

A key is kept as the SHA-256 of its text. No slow hash is needed: keys are drawn with 256 random bits, so there is no
guess that a slower function would delay, and a slow one would be paid by every request. The one rule: no key is ever
here, only hashes. Not here: writing the file (`tenant_file`), and reading credentials from requests (`tenants`).
"""

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from policies.values import Fixed
from router.errors import ConfigError

KEY_PREFIX = "sk-"
HASH_PREFIX = "sha256:"
_KEY_RANDOM_BYTES = 32
_FOUND_BY_BYTES = 8
_LIMITS = ("requests_per_minute", "tokens_per_minute", "in_flight")
_MEMBERS = ("keys", "salt_group", *_LIMITS)
_MOST = 10**15
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class Quota(Fixed, frozen=True):
    """What a tenant may use; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    in_flight: int | None = None


class Tenant(Fixed, frozen=True):
    """One tenant. Those with the same `salt_group` share their prefix cache; without one a tenant is alone."""

    name: str
    salt_group: str = ""
    quota: Quota = Quota()


class Key(Fixed, frozen=True):
    """One key of a tenant, by its hash."""

    digest: bytes
    tenant: Tenant
    expires_s: float | None
    """Seconds since 1970 at which it ends; None is never."""


def new_key() -> str:
    """A key that nobody can guess: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_RANDOM_BYTES)


def hashed(key: str) -> str:
    """A key as the file holds it."""
    return HASH_PREFIX + hashlib.sha256(key.encode("utf-8")).hexdigest()


def good_name(name: object) -> bool:
    """Whether a text may name a tenant or a salt group: a word that is safe in a label, a log and a URL."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class Register:
    """All tenants at one moment; never changed, only replaced."""

    __slots__ = ("_anybody", "_keys", "_tenants")

    def __init__(self, tenants: Iterable[Tenant] = (), keys: Iterable[Key] = (), *, anybody: bool = False) -> None:
        """`anybody`: there is no file, so whoever a token names is a tenant."""
        self._anybody = anybody
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._keys: dict[bytes, list[Key]] = {}
        for key in keys:
            self._keys.setdefault(key.digest[:_FOUND_BY_BYTES], []).append(key)

    def __repr__(self) -> str:
        return f"<Register of {len(self._tenants)} tenants, {sum(map(len, self._keys.values()))} keys>"

    def __len__(self) -> int:
        return len(self._tenants)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tenants)

    def told(self) -> list[tuple[Tenant, list[Key]]]:
        """Every tenant with its keys, for people."""
        keys: dict[str, list[Key]] = {name: [] for name in self._tenants}
        for found in self._keys.values():
            for key in found:
                keys[key.tenant.name].append(key)
        return [(tenant, keys[tenant.name]) for tenant in self._tenants.values()]

    def __contains__(self, name: str) -> bool:
        return name in self._tenants

    def named(self, name: str) -> Tenant | None:
        """The tenant of that name; None where it is nobody's."""
        found = self._tenants.get(name)
        return Tenant(name) if found is None and self._anybody else found

    def of_key(self, key: bytes, now_s: float) -> Tenant | None:
        """Whose key this is at `now_s` seconds since 1970; None when it is nobody's, or its time is over.

        Found by the hash's first bytes, which tell nothing of other keys, then compared whole in constant time.
        """
        digest = hashlib.sha256(key).digest()
        for known in self._keys.get(digest[:_FOUND_BY_BYTES], ()):
            if hmac.compare_digest(known.digest, digest) and (known.expires_s is None or now_s < known.expires_s):
                return known.tenant
        return None


def read(path: Path) -> Register:
    """The tenants of a file. Raises `ConfigError` that names the file, the tenant and the remedy."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"tenants.file {str(path)!r} can't be read: {error.strerror}; `router tenants add NAME --tenants FILE`"
            " makes one"
        ) from None
    return parsed(raw, str(path))


def parsed(raw: bytes, path: str) -> Register:
    """The tenants in the bytes of a file. Raises `ConfigError`."""
    try:
        tree = tomllib.loads(raw.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # the parser's own words may quote the line
        where = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        told = f" ({where[0]})" if where else ""
        raise ConfigError(f"tenants.file {path!r} is not TOML{told}: is it half written?") from None
    table = tree.pop("tenants", None)
    if not isinstance(table, dict):
        raise ConfigError(f"tenants.file {path!r} has no table [tenants]: is it half written?")
    if tree:
        raise ConfigError(f"tenants.file {path!r}: {', '.join(map(_told, tree))} is not [tenants]")
    tenants, keys = [], []
    owners: dict[bytes, str] = {}
    for name, entry in table.items():
        tenant = _tenant(name, entry, path)
        tenants.append(tenant)
        for key in _keys(tenant, entry, path):
            if key.digest in owners:
                raise ConfigError(
                    f"tenants.file {path!r}: the same key belongs to {owners[key.digest]!r} and to {name!r}; "
                    f"`router tenants rotate {name}` gives it another"
                )
            owners[key.digest] = name
            keys.append(key)
    return Register(tenants, keys)


def _tenant(name: str, entry: object, path: str) -> Tenant:
    if not good_name(name):
        raise ConfigError(f"tenants.file {path!r}: {bad_name(name)}")
    if not isinstance(entry, dict):
        raise ConfigError(f"tenants.file {path!r}: {name} is no table; write [tenants.{name}]")
    unknown = [member for member in entry if member not in _MEMBERS]
    if unknown:
        raise ConfigError(
            f"tenants.file {path!r}: {name} has {', '.join(map(_told, unknown))}; known: {', '.join(_MEMBERS)}"
        )
    limits = {limit: _limit(entry[limit], f"{name}.{limit}", path) for limit in _LIMITS if limit in entry}
    group = entry.get("salt_group", "")
    if group and not good_name(group):
        raise ConfigError(f"tenants.file {path!r}: {name}.salt_group: {bad_name(group)}")
    return Tenant(name, group if isinstance(group, str) else "", Quota(**limits))


def bad_name(name: object) -> str:
    """What is wrong with a name."""
    return (
        f"{_told(name)} can't name a tenant or group; use 1 to 128 letters, digits, dots, dashes and underscores,"
        " with a letter or digit first"
    )


def _told(name: object) -> str:
    return repr(str(name)[:40])


def _limit(value: object, what: str, path: str) -> int:
    if type(value) is not int or not 1 <= value <= _MOST:
        raise ConfigError(f"tenants.file {path!r}: {what} must be a whole number from 1 on; leave it out for no limit")
    return value


def _keys(tenant: Tenant, entry: Mapping[str, Any], path: str) -> list[Key]:
    told = f"tenants.file {path!r}: {tenant.name}.keys"
    given = entry.get("keys", [])
    if not isinstance(given, list):
        raise ConfigError(f'{told} must be a list of {{ hash = "sha256:…" }}')
    found = []
    for place, key in enumerate(given, 1):
        if not isinstance(key, dict) or set(key) - {"hash", "expires"}:
            raise ConfigError(f'{told}: entry {place} must be {{ hash = "sha256:…" }}, with or without expires')
        text = key.get("hash")
        if not isinstance(text, str) or not _HASH.fullmatch(text):
            raise ConfigError(
                f"{told}: entry {place} has no hash of the form sha256: and 64 hexadecimal digits; is it a key itself?"
                " Take it out, it is known now"
            )
        expires = key.get("expires")
        if expires is not None and not isinstance(expires, datetime):
            raise ConfigError(f"{told}: entry {place}: expires must be a date and time, as 2027-01-01T00:00:00Z")
        digest = bytes.fromhex(text.removeprefix(HASH_PREFIX))
        found.append(Key(digest, tenant, expires.timestamp() if expires is not None else None))
    return found
