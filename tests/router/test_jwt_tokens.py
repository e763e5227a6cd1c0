"""Signed tokens: whose they are, and every way in which one is not good enough."""

import base64
import json

import pytest

from router.errors import ConfigError, Unauthorized
from router.jwt_tokens import Tokens, read_keys

jwt = pytest.importorskip("jwt")
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
from cryptography.hazmat.primitives import serialization  # noqa: E402 -- only where it is installed
from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: E402

NOW_S = 4_000_000_000
CLAIMS = {"sub": "acme", "iss": "us", "aud": "router", "exp": NOW_S}
SECRET = b"hmac-secret-0123456789abcdefghijklmnop"


def pem(key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
KINDS = {"HS256": (SECRET, SECRET), "RS256": (RSA, pem(RSA)), "ES256": (EC, pem(EC))}


def tokens(tmp_path, algorithm: str = "RS256", key: bytes | None = None, claim: str = "sub") -> Tokens:
    file = tmp_path / "key"
    file.write_bytes(KINDS[algorithm][1] if key is None else key)
    return Tokens(read_keys(file, [algorithm]), [algorithm], "us", "router", claim)


def signed(algorithm: str = "RS256", key=None, headers=None, **claims) -> bytes:
    given = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(given, key or KINDS[algorithm][0], algorithm, headers).encode()


@pytest.mark.parametrize("algorithm", KINDS)
def test_a_claim_names_the_tenant(tmp_path, algorithm):
    assert tokens(tmp_path, algorithm).tenant_of(signed(algorithm), 0.0) == "acme"
    assert tokens(tmp_path, algorithm, claim="org").tenant_of(signed(algorithm, org="b"), 0.0) == "b"


def unsigned(header: dict[str, str]) -> bytes:
    def part(value) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part(header)}.{part(CLAIMS)}.".encode()


REFUSED = {
    "none": (lambda: unsigned({"alg": "none"}), "algorithm that is not accepted"),
    "None": (lambda: unsigned({"alg": "NoNe", "typ": "JWT"}), "algorithm that is not accepted"),
    "another key": (lambda: signed(key=OTHER_RSA), "signature"),
    "another family": (lambda: signed("HS256"), "algorithm"),
    "another audience": (lambda: signed(aud="else"), "another audience"),
    "no audience": (lambda: signed(aud=None), "can not be accepted"),
    "another issuer": (lambda: signed(iss="them"), "another issuer"),
    "no issuer": (lambda: signed(iss=None), "can not be accepted"),
    "over": (lambda: signed(exp=1), "has expired"),
    "no end": (lambda: signed(exp=None), "can not be accepted"),
    "not yet": (lambda: signed(nbf=NOW_S), "not valid yet"),
    "no tenant": (lambda: signed(sub=None), "names no tenant"),
    "a tenant with a space": (lambda: signed(sub="a b"), "names no tenant"),
    "a tenant with a slash": (lambda: signed(sub="a/b"), "names no tenant"),
    "noise": (lambda: b"a.b.c", "can not be accepted"),
    "bytes": (lambda: b"\xff.\xfe.\xfd", "can not be accepted"),
    "tampered": (lambda: signed()[:-6] + b"AAAAAA", "signature"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_token_that_is_not_good_enough(tmp_path, name):
    made, told = REFUSED[name]
    token = made()
    with pytest.raises(Unauthorized, match=told) as refused:
        tokens(tmp_path).tenant_of(token, 0.0)
    assert refused.value.__cause__ is None
    assert token[:12].decode("latin-1") not in str(refused.value)


def test_a_public_key_is_no_shared_secret(tmp_path):
    """The oldest trick: signing with the public key, as if it were a secret."""
    part = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in ({"alg": "HS256"}, CLAIMS)]
    import hashlib
    import hmac

    text = b".".join(part)
    forged = text + b"." + base64.urlsafe_b64encode(hmac.digest(pem(RSA), text, hashlib.sha256)).rstrip(b"=")
    with pytest.raises(Unauthorized):
        tokens(tmp_path).tenant_of(forged, 0.0)
    with pytest.raises(ConfigError, match="must hold a secret"):
        tokens(tmp_path, "HS256", pem(RSA))


def test_a_token_is_checked_once_and_ends_in_time(tmp_path):
    ours = tokens(tmp_path)
    token = signed(exp=NOW_S)
    assert ours.tenant_of(token, 0.0) == "acme"
    ours._jwt = None  # a second check would fail
    assert ours.tenant_of(token, NOW_S - 1) == "acme"
    with pytest.raises(AttributeError):
        ours.tenant_of(token, NOW_S)
    assert "1 known" in repr(ours)


def test_remembered_tokens_are_bounded():
    ours = Tokens({"": SECRET}, ["HS256"], "us", "router", "sub", remembered=50)
    for number in range(200):
        assert ours.tenant_of(signed("HS256", sub=f"t{number}"), 0.0) == f"t{number}"
    assert "50 known" in repr(ours)


def test_a_key_set_is_looked_up_by_kid(tmp_path):
    keys = []
    for kid, key in (("one", RSA), ("two", OTHER_RSA)):
        keys.append(json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": kid, "alg": "RS256"})
    ours = tokens(tmp_path, key=json.dumps({"keys": keys}).encode())
    assert ours.tenant_of(signed(headers={"kid": "one"}), 0.0) == "acme"
    assert ours.tenant_of(signed(key=OTHER_RSA, headers={"kid": "two"}), 0.0) == "acme"
    for headers, told in (({"kid": "two"}, "signature"), ({"kid": "three"}, "not known"), (None, "not known")):
        with pytest.raises(Unauthorized, match=told):
            ours.tenant_of(signed(headers=headers), 0.0)


@pytest.mark.parametrize(
    ("data", "algorithms", "told"),
    [
        (b"-----BEGIN PUBLIC KEY-----\nhalf", ["RS256"], "no public key"),
        (b"", ["ES256"], "no public key"),
        (pem(EC), ["RS256"], "no public key"),
        (b"short", ["HS256"], "32 bytes or more"),
        (b'{"keys":', ["RS256"], "no JWKS"),
        (b'{"keys":[]}', ["RS256"], "no JWKS"),
        (pem(RSA), ["RS256", "HS256"], "one family"),
        (b'{"keys":[{"kty":"oct","k":"AAAA","kid":"a","alg":"HS256"}]}', ["RS256"], "no key for RS256"),
    ],
)
def test_a_key_file_that_can_not_be_used(tmp_path, data, algorithms, told):
    file = tmp_path / "key"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=told):
        read_keys(file, algorithms)


def test_a_key_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        read_keys(tmp_path / "key", ["RS256"])
