"""Tenants files and routers with tenants on.

The one rule: every key and secret here is invented, and made of text that a test can look for.
"""

from contextlib import asynccontextmanager
from pathlib import Path

from router.tenant_keys import hashed
from tests.fakes import FakeReplica, router_over

ALPHA, BETA = "sk-test-K3yM4terial-alpha", "sk-test-K3yM4terial-beta"
SECRET = "S3cret-" + "0123456789abcdefghijklmnopqrstuvwxyz"


def tenants_text(**more: str) -> str:
    """A file with the tenants alpha and beta; `more` adds lines to one of them."""
    return "".join(
        f'[tenants.{name}]\nkeys = [{{ hash = "{hashed(key)}" }}]\n{more.get(name, "")}\n'
        for name, key in (("alpha", ALPHA), ("beta", BETA))
    )


def bearer(key: str) -> bytes:
    return b"Authorization: Bearer " + key.encode()


@asynccontextmanager
async def tenanted(folder: Path, *replicas: FakeReplica, text: str = "", **settings: object):
    """A router with tenants on."""
    (folder / "tenants.toml").write_text(text or tenants_text())
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    given = {"tenants__file": str(folder / "tenants.toml"), "tenants__salt_secret_file": str(folder / "secret")}
    async with router_over(*replicas, **(given | settings)) as up:
        yield up
