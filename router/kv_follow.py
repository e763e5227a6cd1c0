"""Follows KV events as a configuration says: for a router that serves, and for one look by `router check`.

The one rule: both look in the same way, so that what `router check` says is what a router will do. Not here: how
(`kv_events`).
"""

import asyncio
import os
from collections.abc import Mapping
from functools import partial

import aiohttp

from policies.fleet import Fleet
from router.config import Config
from router.health import Watcher
from router.kv_events import KvEvents, KvState
from router.probes import answer

_LOOK_AGAIN_S = 0.02


def followed(fleet: Fleet, watcher: Watcher, client: aiohttp.ClientSession) -> KvEvents:
    """Who follows the events of replicas, for as long as a router runs."""
    return KvEvents(
        fleet,
        ask=partial(answer, client),
        root=watcher.root,
        untold=fleet.untold,
        capacity_blocks=watcher.usable_blocks,
        seeds=_seeds(),
    )


async def looked_at(
    config: Config, roots: Mapping[str, str], client: aiohttp.ClientSession, *, within_s: float
) -> dict[str, KvState]:
    """What would be known of each replica's cache, by what it can replay or publishes within that time.

    `roots` are the replicas to look at, by name, each with the root of its model.
    """
    fleet = Fleet(config.block_tokens)
    events = KvEvents(
        fleet,
        ask=partial(answer, client),
        root=roots.get,
        untold=lambda _: None,
        seeds=_seeds(),
        replay_timeout_s=within_s,
    )
    for replica in config.replicas:
        if replica.name in roots:
            fleet.joined(replica.name)
            events.follow(replica.name, replica.url, replica.kv_events or config.kv_events)
    async with events:
        until_s = asyncio.get_running_loop().time() + within_s
        while asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(_LOOK_AGAIN_S)
            if all(state.settled for state in events.states()):
                break
        return {state.name: state for state in events.states()}


def _seeds() -> tuple[str, ...]:
    seed = os.environ.get("PYTHONHASHSEED")
    return (seed,) if seed else ()
