"""Follows the replicas' KV events for a router that serves.

The one rule: `router check` looks in the same way (`kv_check`), so that what it says is what a router will do. Not
here: how (`kv_events`).
"""

import os
from functools import partial

import aiohttp

from policies.fleet import Fleet
from router.health import Watcher
from router.kv_events import KvEvents
from router.probes import answer


def followed(fleet: Fleet, watcher: Watcher, client: aiohttp.ClientSession) -> KvEvents:
    """Who follows the events of replicas, for as long as a router runs."""
    return KvEvents(
        fleet,
        ask=partial(answer, client),
        root=watcher.root,
        untold=fleet.untold,
        capacity_blocks=watcher.usable_blocks,
        seeds=seeds(),
    )


def seeds() -> tuple[str, ...]:
    """What engines of this environment may seed their hashes with."""
    seed = os.environ.get("PYTHONHASHSEED")
    return (seed,) if seed else ()
