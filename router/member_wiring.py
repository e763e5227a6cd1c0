"""Wiring of what decides which replicas there are: settings, DNS, a file, an operator, and the way to each replica.

The one rule: as in `app`, nothing is decided here. Not here: everything that does not change with the replicas.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

from policies.fleet import Fleet
from router.config import Config, ReplicaAddress
from router.discovery import Discovery
from router.health import Watcher
from router.http.upstream import Upstream
from router.kv_events import KvEvents
from router.membership import Membership
from router.ranks import Ask, Ranks, rank_header
from router.reload import InForce, Reload, timeouts_of
from router.tls import host_of, towards


async def gathered(
    config: Config,
    policy: InForce,
    stack: AsyncExitStack,
    *,
    fleet: Fleet,
    watcher: Watcher,
    events: KvEvents,
    upstreams: MutableMapping[str, Upstream],
    contexts: MutableMapping[str, ssl.SSLContext],
    ask: Ask,
    clock: Callable[[], float],
    gone: Iterable[Callable[[str], None]],
) -> Reload:
    """The replicas that are known now, joined, and what keeps that up to date for as long as `stack` lasts.

    `contexts` gets the TLS context of each host. Raises `ConfigError` for a file that can't be used.
    """

    def way(replica: ReplicaAddress) -> Upstream:
        tls = towards(replica, reload.config.replica_tls)
        if tls is not None:
            contexts[host_of(replica.url)] = tls
        parts = urlsplit(replica.url)
        port = parts.port or (443 if tls else 80)
        base_path = parts.path.rstrip("/").encode()
        return Upstream(
            parts.hostname or "",
            port,
            timeouts=timeouts_of(reload.config),
            tls=tls,
            base_path=base_path,
            headers=rank_header(replica.url),
            client_key=replica.client_key or config.client_key,
        )

    membership = Membership(
        fleet,
        watcher,
        events,
        upstreams,
        way=way,
        clock=clock,
        kv_events=config.kv_events,
        slow_start_s=config.health.slow_start_s,
        drain_s=config.drain_s,
        gone=gone,
    )
    await stack.enter_async_context(membership)
    file = Path(config.replicas_file) if config.replicas_file else None
    ranks = Ranks(config.data_parallel_ranks, ask)
    discovery = Discovery(config.replicas, file, dns_s=config.dns_s, split=ranks.split)
    reload = Reload(
        config,
        policy=policy,
        membership=membership,
        discovery=discovery,
        upstreams=upstreams,
        levelled=lambda level: logging.getLogger().setLevel(level.upper()),
    )
    for source, found in (await discovery.found()).items():
        membership.started(source, found)
    keeping = asyncio.create_task(discovery.kept(membership), name="discovery")
    stack.callback(keeping.cancel)
    return reload
