"""Tenants from a configuration: off, or on by a file, by tokens, or by both.

The one rule: tenants that can't be kept apart are no tenants; without a secret, or with a file that can't be read, the
router does not start. Not here: what the objects do.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from msgspec import Struct

from router.config import Config
from router.errors import ConfigError
from router.families import Built
from router.health import Watcher
from router.jwt_tokens import ALGORITHMS, Tokens, read_keys
from router.quotas import Quotas
from router.rereading import Current, Fixed, Reread
from router.salt_proof import SaltProof
from router.salted_paths import SaltedPaths
from router.salts import Salts, readable_by_others, salts, secret_file
from router.tenant_keys import Register, read
from router.tenant_metrics import TenantCounts
from router.tenants import CREDENTIALS, Door, OpenDoor, Tenants

_log = logging.getLogger("router.tenants")

LOOK_S = 1.0
"""Seconds between two looks at the files; a change is in force after two."""

_SHARED = "tenants are off: every client shares the replicas' prefix caches"


class Wired(Struct, frozen=True):
    """What the rest of the router needs of tenants."""

    door: Door
    credentials: frozenset[bytes]
    """Headers that stop here."""
    families: tuple[Callable[[], Iterator[Built]], ...]
    told: str
    """The line that says at start whether caches are shared."""
    on: bool
    proof: SaltProof | None = None

    async def ready(self, within_s: float) -> None:
        """Return when replicas have told whether they read salts, or after so long."""
        if self.proof is not None:
            await self.proof.first_answers(within_s)


def tenants_on(config: Config) -> bool:
    return config.tenants.file is not None or config.jwt.key_file is not None


async def wired(
    config: Config,
    environment: Mapping[str, str],
    clock: Callable[[], float],
    stack: AsyncExitStack,
    watcher: Watcher,
    client: aiohttp.ClientSession,
) -> Wired:
    """Tenants as the configuration wants them. Raises `ConfigError`.

    Until `stack` ends their files are watched, and replicas asked through `client` whether they read salts.
    """
    if not tenants_on(config):
        return Wired(OpenDoor(), frozenset(), (), _SHARED, False)
    register: Current[Register] = Fixed(Register(anybody=True))
    if config.tenants.file is not None:
        register = await stack.enter_async_context(Reread(Path(config.tenants.file), read, interval_s=LOOK_S))
    tokens = await _tokens(config, stack)
    proof = await stack.enter_async_context(SaltProof(client, watcher.states, interval_s=LOOK_S))
    counts = TenantCounts(register)
    door = Tenants(
        register=register,
        salts=await _salts(config, environment, stack),
        tokens=tokens,
        paths=SaltedPaths(config.tenants.shared_paths, proof.check),
        quotas=Quotas(clock),
        counts=counts,
        wall_clock=time.time,
    )
    told = f"tenants are on: {len(register.value)} in the file, each with a prefix cache of its own"
    if tokens is not None:
        told += "; tokens are accepted"
    if config.tenants.shared_paths:
        told += f"; NOT kept apart on {', '.join(config.tenants.shared_paths)}"
    return Wired(door, CREDENTIALS, (counts.collect,), told, True, proof)


async def _salts(config: Config, environment: Mapping[str, str], stack: AsyncExitStack) -> Current[Salts]:
    wanted = config.tenants
    path = Path(wanted.salt_secret_file) if wanted.salt_secret_file is not None else None
    if path is None:
        return Fixed(salts(None, environment, wanted.salt_overlap_s))
    found = Reread(path, lambda file: secret_file(file, wanted.salt_overlap_s), interval_s=LOOK_S)
    if readable_by_others(path):
        _log.warning("%s may be read by everybody on this machine; chmod 600 it", path)
    return await stack.enter_async_context(found)


async def _tokens(config: Config, stack: AsyncExitStack) -> Current[Tokens] | None:
    wanted = config.jwt
    if wanted.key_file is None:
        return None
    unknown = [name for name in wanted.algorithms if name not in ALGORITHMS]
    if unknown or not wanted.algorithms:
        raise ConfigError(f"jwt.algorithms has {', '.join(unknown) or 'none'}; known: {', '.join(ALGORITHMS)}")
    issuer, audience = wanted.issuer, wanted.audience
    if not issuer or not audience:
        raise ConfigError("jwt.issuer and jwt.audience must say whose tokens are accepted, and for whom they are")

    def made(path: Path) -> Tokens:
        keys = read_keys(path, wanted.algorithms)
        return Tokens(keys, wanted.algorithms, issuer, audience, wanted.claim)

    return await stack.enter_async_context(Reread(Path(wanted.key_file), made, interval_s=LOOK_S))
