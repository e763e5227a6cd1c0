"""Signed tokens instead of keys: a JWT's claim names the tenant (RFC 7519, through PyJWT).

The one rule: only the algorithms the operator listed are ever tried, of one family, with a key of that family, and
`none` is not one; who signed, for whom, and until when are always checked. A token that was good is remembered by its
hash until it ends, so that its signature is checked once. Not here: API keys (`tenant_keys`).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.errors import ConfigError, Unauthorized
from router.tenant_keys import good_name

if TYPE_CHECKING:
    from jwt import PyJWK

_LEAST_SECRET_BYTES = 32
_REFUSALS = {
    "ExpiredSignatureError": "has expired",
    "ImmatureSignatureError": "is not valid yet",
    "InvalidAudienceError": "is for another audience",
    "InvalidIssuerError": "is from another issuer",
    "InvalidAlgorithmError": "is signed by an algorithm that is not accepted",
    "InvalidSignatureError": "has a signature that does not fit",
}


class Tokens:
    """Checks tokens under one set of keys. Made anew when the keys change."""

    def __init__(
        self,
        keys: "dict[str, PyJWK | str | bytes]",
        algorithms: Sequence[str],
        issuer: str,
        audience: str,
        claim: str,
        *,
        remembered: int = 10_000,
    ) -> None:
        """`keys` by their `kid`; one under the empty name is for tokens without a `kid`, too."""
        import jwt

        self._jwt = jwt
        self._keys = keys
        self._algorithms = list(algorithms)
        self._issuer = issuer
        self._audience = audience
        self._claim = claim
        self._remembered = remembered
        self._known: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Tokens under {len(self._keys)} keys, {len(self._known)} known>"

    def tenant_of(self, token: bytes, now_s: float) -> str:
        """The tenant a token names at `now_s` seconds since 1970. Raises `Unauthorized`."""
        digest = hashlib.sha256(token).digest()
        known = self._known.get(digest)
        if known is not None and now_s < known[1]:
            return known[0]
        name, expires_s = self._checked(token)
        if len(self._known) >= self._remembered:
            self._known.popitem(last=False)
        self._known[digest] = name, expires_s
        return name

    def _checked(self, token: bytes) -> tuple[str, float]:
        try:
            kid = self._jwt.get_unverified_header(token).get("kid", "")
            key = self._keys.get(kid) or self._keys.get("")
            if key is None:
                raise Unauthorized("the token is signed by a key that is not known here")
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                issuer=self._issuer,
                audience=self._audience,
                options={"require": ["exp", "iss", "aud"]},
            )
        except self._jwt.PyJWTError as error:
            # The library's own words may quote the token; only the kind of error is told.
            raise Unauthorized(f"the token {_REFUSALS.get(type(error).__name__, 'can not be accepted')}") from None
        name = claims.get(self._claim)
        if not isinstance(name, str) or not good_name(name):
            raise Unauthorized(f"the token's claim {self._claim!r} names no tenant")
        return name, float(claims["exp"])


FAMILIES = {
    "HS": ("HS256", "HS384", "HS512"),
    "RS": ("RS256", "RS384", "RS512"),
    "ES": ("ES256", "ES384", "ES512"),
}
ALGORITHMS = tuple(name for family in FAMILIES.values() for name in family)


def read_keys(path: Path, algorithms: Sequence[str]) -> "dict[str, PyJWK | str | bytes]":
    """The keys of a file: a PEM public key, a JWKS document, or a shared secret for HS. Raises `ConfigError`."""
    try:
        import jwt
    except ImportError:
        raise ConfigError("jwt.key_file needs PyJWT; install it: pip install 'prefix-router[jwt]'") from None
    told = f"jwt.key_file {str(path)!r}"
    families = {name[:2] for name in algorithms}
    if len(families) != 1:
        raise ConfigError("jwt.algorithms must be of one family (HS, RS or ES): a key is for one only")
    family = families.pop()
    try:
        raw = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{told} can't be read: {error.strerror}") from None
    if raw.startswith(b"{"):
        return _key_set(raw, told, algorithms)
    if family == "HS":
        if len(raw) < _LEAST_SECRET_BYTES or b"-----BEGIN" in raw:
            raise ConfigError(f"{told} must hold a secret of {_LEAST_SECRET_BYTES} bytes or more for {algorithms[0]}")
        return {"": raw}
    try:
        jwt.get_algorithm_by_name(algorithms[0]).prepare_key(raw)
    except (ValueError, TypeError, jwt.PyJWTError):
        raise ConfigError(f"{told} holds no public key for {algorithms[0]}; give it in PEM or as a JWKS") from None
    return {"": raw}


def _key_set(raw: bytes, told: str, algorithms: Sequence[str]) -> "dict[str, PyJWK | str | bytes]":
    import jwt

    try:
        found = jwt.PyJWKSet.from_json(raw.decode("utf-8")).keys
    except (ValueError, KeyError, AttributeError, TypeError, jwt.PyJWTError):
        raise ConfigError(f"{told} is no JWKS document: is it half written?") from None
    kept: dict[str, PyJWK | str | bytes] = {key.key_id or "": key for key in found if key.algorithm_name in algorithms}
    if not kept:
        raise ConfigError(f"{told} holds no key for {', '.join(algorithms)}")
    return kept
