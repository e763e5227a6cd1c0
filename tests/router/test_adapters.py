"""An adapter that is loaded from elsewhere under its name finds nothing of what it had cached: nothing is predicted."""

from collections import OrderedDict
from types import SimpleNamespace

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


def request(adapter: str, first: int) -> Request:
    blocks = (first.to_bytes(16, "big"), b"b" * 16)
    return Request(str(first), "/", adapter, "t", None, None, 9, 1, blocks, 4)


def entry(adapter: str, path: str = "/1") -> dict[str, str]:
    return {"id": adapter, "parent": "m", "root": path}


def adapters_of(*names: str) -> tuple[Adapters, list[tuple[str, str]]]:
    told: list[tuple[str, str]] = []
    fleet = Fleet(4)
    fleet.joined("r1")
    adapters = Adapters(fleet, lambda name, adapter: told.append((name, adapter)))
    adapters.told("r1", [entry(name) for name in names])
    return adapters, told


def remembered(adapters: Adapters) -> dict[str, list[int]]:
    return {name: [int.from_bytes(first, "big") for first in starts] for name, starts in adapters._starts.items()}


def test_what_is_remembered_of_all_adapters_is_bounded(monkeypatch):
    monkeypatch.setattr("router.adapters._STARTS", 3)
    monkeypatch.setattr("router.adapters._ALL_STARTS", 6)
    adapters, _ = adapters_of("idle", "a", "b", "c")
    for first, name in enumerate(["a", "a", "a", "a", "b", "b", "b"]):
        adapters.ended(SimpleNamespace(request=request(name, first)), None)
    assert remembered(adapters) == {"idle": [], "a": [1, 2, 3], "b": [4, 5, 6]} | {"c": []}
    for first, name in [(1, "a"), (7, "c")]:  # now b is the one that was used longest ago
        adapters.ended(SimpleNamespace(request=request(name, first)), None)
    assert remembered(adapters) == {"idle": [], "a": [2, 3, 1], "b": [], "c": [7]}
    assert adapters._all_starts == 4


def test_names_that_come_and_go_are_forgotten_at_last(monkeypatch):
    monkeypatch.setattr("router.adapters._ADAPTERS", 3)
    adapters, told = adapters_of("a", "b", "c")
    adapters.ended(SimpleNamespace(request=request("a", 1)), None)
    adapters.told("r1", [entry("a"), entry("d")])
    assert adapters._paths == {"r1": {"c": "/1", "a": "/1", "d": "/1"}}
    assert remembered(adapters) == {"c": [], "a": [1], "d": []}
    adapters.told("r1", [entry("a", "/2"), entry("b", "/2")])
    assert told == [("r1", "a")]  # of b nobody knows where it came from
    assert len(adapters._paths["r1"]) == len(adapters._starts) == 3
