"""An adapter that is loaded from elsewhere under its name finds nothing of what it had cached: nothing is predicted."""

from collections import OrderedDict

import aiohttp
import pytest

from policies.fleet import Fleet
from policies.types import Request
from router.adapters import Adapters
from tests.behind import behind
from tests.emulated import LONG, emulated
from tests.fakes import until

HELD = len(LONG) // 16 * 16


async def loaded(url: str, path: str, **more: object) -> None:
    body = {"lora_name": "sql", "lora_path": path, **more}
    async with aiohttp.ClientSession(url) as client, client.post("/v1/load_lora_adapter", json=body) as response:
        assert (response.status, await response.text()) == (200, "Success: LoRA adapter 'sql' added successfully.")


async def unloaded(url: str) -> None:
    body = {"lora_name": "sql"}
    async with aiohttp.ClientSession(url) as client, client.post("/v1/unload_lora_adapter", json=body) as response:
        assert response.status == 200


async def twice(router, replica, model: str, **more: object) -> list[tuple[int, int]]:
    """One prompt asked twice, the second time when all that the replica published is heard."""
    found = [await router.found(LONG, model, **more)]
    if router.up.events.states()[0].batches:
        await until(lambda: router.up.events.states()[0].batches == replica.telling._next)
    return [*found, await router.found(LONG, model, **more)]


def path_of(up, name: str) -> str:
    entries = up.watcher._watched[name].entries
    return next((entry["root"] for entry in entries if entry["id"] == "sql"), "")


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("events", ["auto", "off"])
async def test_what_an_adapter_had_cached_is_not_predicted_once_it_comes_from_elsewhere(events, in_place):
    replica = await emulated(kv_events=0)
    try:
        async with behind([replica], kv_events=events) as router:
            assert await twice(router, replica, "sql") == [(0, 0), (HELD, HELD)]
            assert await twice(router, replica, "sql", cache_salt="a") == [(0, 0), (HELD, HELD)]
            assert await twice(router, replica, "tiny") == [(0, 0), (HELD, HELD)]
            if not in_place:
                await unloaded(replica.url)
            await loaded(replica.url, "/adapters/sql-2", load_inplace=in_place)
            await until(lambda: path_of(router.up, "r1") == "/adapters/sql-2")
            if events == "auto":
                left = HELD // 16
                await until(lambda: router.up.fleet.held_blocks("r1") == left)
            assert await twice(router, replica, "sql") == [(0, 0), (HELD, HELD)]
            assert await twice(router, replica, "sql", cache_salt="a") == [(0, 0), (HELD, HELD)]
            assert await router.found(LONG) == (HELD, HELD)
    finally:
        await replica.close()


@pytest.mark.parametrize("events", ["auto", "off"])
async def test_loaded_again_from_the_same_path_it_finds_what_it_had(events):
    replica = await emulated(kv_events=0)
    try:
        async with behind([replica], kv_events=events) as router:
            assert await router.found(LONG, "sql") == (0, 0)
            await unloaded(replica.url)
            await until(lambda: not path_of(router.up, "r1"))
            await loaded(replica.url, "/adapters/sql")
            await until(lambda: path_of(router.up, "r1") == "/adapters/sql")
            assert await router.found(LONG, "sql") == (HELD, HELD)
    finally:
        await replica.close()


def test_only_the_replica_that_loaded_it_forgets():
    fleet, told = Fleet(4), []
    blocks = (b"a" * 16, b"b" * 16)
    adapters = Adapters(fleet, lambda name, adapter: told.append((name, adapter)))
    entry = {"id": "sql", "parent": "m", "root": "/1"}
    for name in ("r1", "r2"):
        fleet.joined(name)
        adapters.told(name, [{"id": "m", "parent": None, "root": "m"}, entry])
    adapters._starts["sql"] = OrderedDict.fromkeys(blocks[:1])
    for number, name in enumerate(("r1", "r2")):
        fleet.sent(Request(str(number), "/", "sql", "t", None, None, 9, 1, blocks, 4), name)
    adapters.told("r2", [entry])
    adapters.told("r1", [])
    assert told == []
    adapters.told("r1", [entry | {"root": "/2"}])
    assert told == [("r1", "sql")]
    assert [fleet.held_blocks(name) for name in ("r1", "r2")] == [0, 2]
    adapters.told("r2", None)
    adapters.told("r2", [entry | {"root": "/2"}])
    assert told == [("r1", "sql")]
