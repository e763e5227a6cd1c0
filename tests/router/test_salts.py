"""Salts: one per tenant or group, unguessable, stable, and moved to a new secret a few at a time."""

import hashlib
import hmac
import logging
import os
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from router.errors import ConfigError
from router.salts import Salts, readable_by_others, salts, secret_file
from router.tenant_keys import Tenant

NEW, OLD = b"n3w-0123456789abcdefghijklmnopqrstuv", b"0ld-0123456789abcdefghijklmnopqrstuv"


def test_a_salt_is_the_hmac_of_the_framed_name():
    def framed(*parts: bytes) -> bytes:
        return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    digest = hmac.new(NEW, framed(b"prefix-router cache_salt 1", b"tenant", b"acme"), hashlib.sha256).digest()
    found = Salts(NEW).of(Tenant("acme"), 0.0)
    assert found == urlsafe_b64encode(digest).decode().rstrip("=")
    assert len(found) == 43
    assert not set(found) & set('@/\\\0"')


def test_tenants_differ_and_groups_agree():
    tenants = [Tenant("a"), Tenant("b"), Tenant("g"), Tenant("c", "g"), Tenant("d", "g"), Tenant("e", "a")]
    alone, other, like_group, one, two, like_tenant = [Salts(NEW).of(tenant, 0.0) for tenant in tenants]
    assert one == two
    assert len({alone, other, like_group, one, like_tenant}) == 5
    assert Salts(OLD).of(Tenant("a"), 0.0) != alone


def test_tenants_move_to_a_new_secret_a_few_at_a_time():
    moving = Salts(NEW, OLD, since_s=1000.0, overlap_s=100.0)
    tenants = [Tenant(f"t{number}") for number in range(200)]
    after = {tenant.name: Salts(NEW).of(tenant, 0.0) for tenant in tenants}
    before = {tenant.name: Salts(OLD).of(tenant, 0.0) for tenant in tenants}

    def moved(now_s: float) -> set[str]:
        found = {tenant.name: moving.of(tenant, now_s) for tenant in tenants}
        assert all(found[name] in (after[name], before[name]) for name in found)
        return {name for name in found if found[name] == after[name]}

    assert moved(1000.0) == set()
    assert 60 <= len(moved(1050.0)) <= 140
    assert moved(1030.0) < moved(1050.0) < moved(1080.0)
    assert moved(1100.0) == set(after)
    group = [Tenant("x", "g"), Tenant("y", "g")]
    assert all(moving.of(group[0], now_s) == moving.of(group[1], now_s) for now_s in range(1000, 1101, 5))


def test_salts_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("router.salts._MOST_KNOWN", 10)
    remembering = Salts(NEW)
    for number in (*range(100), *range(100)):
        tenant = Tenant(f"t{number}")
        assert remembering.of(tenant, 0.0) == remembering.of(tenant, 9.0) == Salts(NEW).of(tenant, 0.0)
    assert len(remembering._known) <= 10


def test_a_file_holds_the_secret_and_perhaps_the_older_one(tmp_path):
    file = tmp_path / "secret"
    file.write_bytes(NEW + b"\n")
    assert secret_file(file, 100.0).of(Tenant("a"), 0.0) == Salts(NEW).of(Tenant("a"), 0.0)
    file.write_bytes(NEW + b"\r\n\n" + OLD)
    os.utime(file, (1000, 1000))
    found = secret_file(file, 100.0)
    assert found.of(Tenant("a"), 999.0) == Salts(OLD).of(Tenant("a"), 0.0)
    assert found.of(Tenant("a"), 1100.0) == Salts(NEW).of(Tenant("a"), 0.0)
    assert secret_file(file, 0.0).of(Tenant("a"), 999.0) == Salts(NEW).of(Tenant("a"), 0.0)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "one secret a line"),
        (b"short-secret", "fewer than 32"),
        (NEW + b"\n" + b"short-secret", "secret 2 has 12 bytes"),
        (b"ab" * 40, "repeats"),
        (NEW + b"\n" + OLD + b"\n" + OLD, "at most one older"),
    ],
)
def test_a_secret_that_could_be_guessed_is_refused_and_not_quoted(tmp_path, data, told):
    file = tmp_path / "secret"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=told) as refused:
        secret_file(file, 0.0)
    assert "openssl rand" in str(refused.value)
    assert "short-secret" not in str(refused.value)


def test_the_environment_may_hold_the_secret():
    assert salts(None, {"ROUTER_SALT_SECRET": NEW.decode()}, 0.0).of(Tenant("a"), 0.0) == Salts(NEW).of(
        Tenant("a"), 0.0
    )
    with pytest.raises(ConfigError, match="ROUTER_SALT_SECRET has 5 bytes"):
        salts(None, {"ROUTER_SALT_SECRET": "short"}, 0.0)
    with pytest.raises(ConfigError, match="--salt-secret-file"):
        salts(None, {}, 0.0)
    with pytest.raises(ConfigError, match="can't be read"):
        salts(Path("nowhere"), {"ROUTER_SALT_SECRET": NEW.decode()}, 0.0)


def test_nothing_shows_a_secret(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "secret"
    file.write_bytes(NEW)
    file.chmod(0o644)
    assert readable_by_others(file)
    shown = repr(secret_file(file, 0.0)) + repr(Salts(NEW, OLD, overlap_s=1.0)) + caplog.text
    assert "n3w" not in shown
    assert "0ld" not in shown
