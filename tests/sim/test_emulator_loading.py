"""Adapters that come and go while the emulator runs, in vLLM's words."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.emulated import ASKED, CHAT, cached, emulated, post

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    emulator = await emulated()
    async with aiohttp.ClientSession(emulator.url) as session:
        yield session
    await emulator.close()


async def told(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> str:
    async with client.post(path, json=body) as response:
        assert response.status == 200
        return await response.text()


async def asked(client: aiohttp.ClientSession) -> int:
    return cached(await post(client, CHAT, ASKED[CHAT] | {"model": "sql"}))


async def test_an_adapters_path_is_a_part_of_what_is_cached(client: aiohttp.ClientSession) -> None:
    assert [await asked(client) for _ in range(2)] == [0, 80]
    there = {"lora_name": "sql", "lora_path": "/elsewhere", "load_inplace": True}
    assert await told(client, LOAD, there) == "Success: LoRA adapter 'sql' added successfully."
    assert [await asked(client) for _ in range(2)] == [0, 80]
    assert await told(client, UNLOAD, there) == "Success: LoRA adapter 'sql' removed successfully."
    await post(client, CHAT, ASKED[CHAT] | {"model": "sql"}, status=404)
    await told(client, LOAD, {"lora_name": "sql", "lora_path": "/adapters/sql"})
    assert await asked(client) == 80
    async with client.get("/v1/models") as response:
        cards = (await response.json())["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
        ("tiny", "/models/tiny", None),
        ("sql", "/adapters/sql", "tiny"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (LOAD, {"lora_name": "sql", "lora_path": "/a"}, 400, "InvalidUserInput"),
        (LOAD, {"lora_name": "tiny", "lora_path": "/a"}, 400, "InvalidUserInput"),
        (LOAD, {"lora_name": "", "lora_path": "/a"}, 400, "InvalidUserInput"),
        (LOAD, {"lora_name": "new"}, 400, "Bad Request"),
        (LOAD, {"lora_name": 3, "lora_path": "/a"}, 400, "Bad Request"),
        (UNLOAD, {"lora_name": ""}, 400, "InvalidUserInput"),
        (UNLOAD, {"lora_name": "new"}, 404, "NotFoundError"),
    ],
)
async def test_what_is_refused(
    client: aiohttp.ClientSession, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    assert (await post(client, path, body, status=status))["error"]["type"] == kind
