"""Takes a changed configuration into force while requests go on.

The one rule: what can't be used changes nothing, and what can't be changed while the router runs is named in the log
as waiting for a restart. Not here: when to look (`serving`), and what settings mean.
"""

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from policies.errors import PolicyError
from policies.plugins import load
from policies.types import Policy
from router.config import Config
from router.discovery import Discovery
from router.errors import ConfigError
from router.http.exchange import Timeouts
from router.http.patience import Sweep
from router.http.upstream import Upstream
from router.membership import Membership
from router.ports import patience_of
from router.settings import values
from router.tls import checked

_log = logging.getLogger("router.reload")

LIVE = (
    "replicas",
    "dns_s",
    "policy.name",
    "policy.settings",
    "policy.seed",
    "timeouts.connect_s",
    "timeouts.first_byte_s",
    "timeouts.idle_s",
    "timeouts.client_head_s",
    "timeouts.client_body_idle_s",
    "timeouts.client_keep_s",
    "health.slow_start_s",
    "log.level",
    "drain_s",
    "unready_s",
)
"""Settings that a reload changes; all others wait for a restart."""


class InForce:
    """The policy that decides now. What it learnt of its own goes with it when another one is taken."""

    def __init__(self, policy: Policy) -> None:
        self.take(policy)

    def take(self, policy: Policy) -> None:
        self._policy = policy
        self.choose = policy.choose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "InForce":
        return InForce(deepcopy(self._policy, memo))


class Reload:
    """Knows the configuration in force, and brings the router to another one."""

    def __init__(
        self,
        config: Config,
        *,
        policy: InForce,
        membership: Membership,
        discovery: Discovery,
        upstreams: Mapping[str, Upstream],
        levelled: Callable[[str], None],
    ) -> None:
        """`levelled` sets the least severe level that is logged."""
        self.config = config
        self._policy = policy
        self.membership = membership
        self._discovery = discovery
        self._upstreams = upstreams
        self._levelled = levelled
        self.patience: Sweep | None = None
        """Who looks after slow clients, once there can be any."""

    def __repr__(self) -> str:
        return f"<Reload {self.config.policy.name}, {len(self.config.replicas)} replicas>"

    async def reloaded(self, read: Callable[[], Config]) -> bool:
        """Read the configuration again and take it; False when it can't be used, and then nothing has changed."""
        try:
            new = read()
            checked(new.listen, new.replica_tls, new.replicas)
            policy = self._other_policy(new)
        except (ConfigError, PolicyError) as error:
            _log.error("the configuration can't be used: %s; the one before stays in force", error)
            return False
        before, after = values(self.config), values(new)
        changed = [name for name in after if after[name] != before[name]]
        waiting = [name for name in changed if name not in LIVE]
        self.config = new
        if policy is not None:
            self._policy.take(policy)
        await self._taken(new)
        _log.info("the configuration was read again; changed: %s", ", ".join(changed) or "nothing")
        if waiting:
            _log.warning("restart the router to change %s; until then the old values stay", ", ".join(waiting))
        return True

    def _other_policy(self, new: Config) -> Policy | None:
        """The policy a new configuration asks for; None when it is the one in force."""
        wanted, held = new.policy, self.config.policy
        if (wanted.name, wanted.settings, wanted.seed) == (held.name, held.settings, held.seed):
            return None
        policy = load(wanted.name, wanted.settings, wanted.seed)
        if getattr(policy, "uses_prefixes", True) != getattr(self._policy, "uses_prefixes", True):
            raise ConfigError(f"policy.name = {wanted.name} reads prompts where {held.name} does not, or the reverse")
        return policy

    async def _taken(self, new: Config) -> None:
        self._levelled(new.log.level)
        self.membership.drain_s = new.drain_s
        self.membership.slow_start_s = new.health.slow_start_s
        self._discovery.dns_s = new.dns_s
        for upstream in self._upstreams.values():
            upstream.timeouts = timeouts_of(new)
        if self.patience is not None:
            self.patience.patience = patience_of(new)
        await self._discovery.rewritten(new.replicas, self.membership)


def timeouts_of(config: Config) -> Timeouts:
    """What the data plane waits for replicas."""
    return Timeouts(config.timeouts.connect_s, config.timeouts.first_byte_s, config.timeouts.idle_s)
