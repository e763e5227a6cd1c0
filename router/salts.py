"""The salt of a tenant's prefix cache: HMAC-SHA-256 of its framed name under a secret that only routers know.

    salt     base64url(HMAC-SHA-256(secret, frame(purpose) || frame(kind) || frame(name))), 43 characters
    frame    the length as 8 bytes, then the bytes, so that no two names give the same input (RFC 2104, FIPS 198-1)

A new secret makes every cache cold. So a secret file may hold the older one in its second line: tenants then move to
the new one a few at a time, spread over the overlap, each at a moment that all routers reckon alike. The one rule: a
secret and a salt are never shown. Not here: putting a salt into a body (`splice`).
"""

import hmac
import stat
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from router.errors import ConfigError
from router.tenant_keys import Tenant

VARIABLE: Final = "ROUTER_SALT_SECRET"
LEAST_BYTES: Final = 32
SALT_CHARACTERS: Final = 43
_MOST_KNOWN = 20_000
_PURPOSE: Final = b"prefix-router cache_salt 1"
_MOVE: Final = b"prefix-router salt rotation 1"
_REMEDY: Final = "make one: `openssl rand -base64 48`"


class Salts:
    """The salts of all tenants under one secret, or on the way from an older one to it."""

    __slots__ = ("_known", "_older", "_overlap_s", "_secret", "_since_s")

    def __init__(self, secret: bytes, older: bytes | None = None, *, since_s: float = 0.0, overlap_s: float = 0.0):
        """Tenants move from `older` within `overlap_s` seconds after `since_s` (seconds since 1970)."""
        self._secret = secret
        self._older = older if overlap_s > 0 else None
        self._since_s = since_s
        self._overlap_s = overlap_s
        self._known: dict[tuple[bool, str], tuple[float, str, str]] = {}
        """Of tenants and groups that were seen: when they move, and the salts before and from then on."""

    def __repr__(self) -> str:
        return "<Salts under one secret>" if self._older is None else "<Salts moving to a new secret>"

    def of(self, tenant: Tenant, now_s: float) -> str:
        """The salt at `now_s` seconds since 1970. Tenants of one group have one."""
        key = (True, tenant.salt_group) if tenant.salt_group else (False, tenant.name)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._made(*key)
        return known[1] if now_s < known[0] else known[2]

    def _made(self, grouped: bool, name: str) -> tuple[float, str, str]:
        framed = _framed(b"group" if grouped else b"tenant") + _framed(name.encode("utf-8", "surrogatepass"))
        salt = _salt(self._secret, framed)
        if self._older is None:
            return 0.0, salt, salt
        return self._since_s + self._overlap_s * _share(self._secret, framed), _salt(self._older, framed), salt


def _salt(secret: bytes, framed: bytes) -> str:
    return urlsafe_b64encode(hmac.digest(secret, _PURPOSE_FRAMED + framed, "sha256"))[:SALT_CHARACTERS].decode()


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


_PURPOSE_FRAMED: Final = _framed(_PURPOSE)


def _share(secret: bytes, framed: bytes) -> float:
    """When in the overlap, as a share of it, this tenant moves."""
    return int.from_bytes(hmac.digest(secret, _framed(_MOVE) + framed, "sha256")[:8], "big") / 2**64


def secret_file(path: Path, overlap_s: float) -> Salts:
    """Salts under the secret of a file: the first line, the second being the older one. Raises `ConfigError`.

    The overlap begins when the file was last written.
    """
    told = f"tenants.salt_secret_file {str(path)!r}"
    try:
        lines = path.read_bytes().split(b"\n")
        since_s = path.stat().st_mtime
    except OSError as error:
        raise ConfigError(f"{told} can't be read: {error.strerror}; {_REMEDY}") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found or len(found) > 2:
        raise ConfigError(f"{told} must hold one secret a line: the one in force, and at most one older; {_REMEDY}")
    for place, secret in enumerate(found, 1):
        _checked(secret, f"{told}, secret {place}")
    return Salts(found[0], found[1] if len(found) > 1 else None, since_s=since_s, overlap_s=overlap_s)


def readable_by_others(path: Path) -> bool:
    """Whether everybody on the machine may read the file."""
    return bool(path.stat().st_mode & stat.S_IROTH)


def salts(path: Path | None, environment: Mapping[str, str], overlap_s: float) -> Salts:
    """Salts under the configured secret. Raises `ConfigError` when there is none, or it is too short."""
    if path is not None:
        return secret_file(path, overlap_s)
    secret = environment.get(VARIABLE, "").strip().encode("utf-8", "surrogateescape")
    if not secret:
        raise ConfigError(
            f"tenants need a secret to derive salts from; give --salt-secret-file FILE or set {VARIABLE}; {_REMEDY}"
        )
    _checked(secret, f"the environment variable {VARIABLE}")
    return Salts(secret)


def _checked(secret: bytes, told: str) -> None:
    if len(secret) < LEAST_BYTES:
        raise ConfigError(f"{told} has {len(secret)} bytes, fewer than {LEAST_BYTES}: it could be guessed; {_REMEDY}")
    if len(set(secret)) < 10:
        raise ConfigError(f"{told} repeats a few characters: it could be guessed; {_REMEDY}")
