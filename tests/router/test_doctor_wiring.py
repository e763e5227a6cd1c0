"""`GET /hits` and `GET /doctor` of a running router's admin port."""

import asyncio
import json
import logging

import aiohttp
import orjson

from router.cli import main
from tests.fakes import chunk, fake_replica, ok, posted, router_over
from tests.router.doctor.traffic import CHAT, broken

ANSWER = ok(
    b'{"usage": {"prompt_tokens": 1000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 250}}}'
)


async def got(url: str):
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return response.status, await response.json(content_type=None)


async def sent(up, bodies, *fields):
    for body in bodies:
        assert (await posted(up.url, orjson.dumps(body), *fields, path=CHAT.encode())).status == 200


async def test_hits_and_findings_on_the_admin_port(capsys):
    async with fake_replica(ANSWER) as replica, router_over(replica, route_by="header:x-app") as up:
        await sent(up, broken("clock"), b"X-App: agents")
        _, hits = await got(f"{up.admin_url}/hits")
        (row,) = hits["rows"]
        assert (row["route"], row["tenant"], row["replica"], row["requests"]) == ("agents", "", "r1", 24)
        assert row["delivered_fraction"] == 0.25
        status, told = await got(f"{up.admin_url}/doctor")
        assert status == 200
        assert [route["route"] for route in told["routes"]] == ["agents"]
        assert told["routes"][0]["requests"] == 24
        code = await asyncio.to_thread(main, ["doctor", "--url", up.admin_url, "--json"])
        assert json.loads(capsys.readouterr().out)["routes"] == told["routes"]
        assert code == int(told["breaks"])


async def test_the_command_line_replays_what_mending_saves(capsys, monkeypatch):
    monkeypatch.setattr("router.doctor.live.EARNED_PER_REQUEST_S", 0.01)
    async with fake_replica(ANSWER) as replica, router_over(replica) as up:
        await sent(up, broken("clock"))
        assert "sketches" not in (await got(f"{up.admin_url}/doctor"))[1]
        assert len((await got(f"{up.admin_url}/doctor?sketches=1"))[1]["sketches"][CHAT]) == 24
        assert await asyncio.to_thread(main, ["doctor", "--url", up.admin_url, "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert "sketches" not in told
        (one,) = told["findings"]
        assert (one["kind"], one["block"]) == ("timestamp", 16)
        assert 0 < one["saved_tokens"] < told["routes"][0]["prompt_tokens"]
        assert await asyncio.to_thread(main, ["doctor", "--url", up.admin_url]) == 1
        assert f"that saves {one['saved_tokens']:,} tokens (replayed)" in capsys.readouterr().out


async def test_the_doctor_may_be_off():
    async with fake_replica(ANSWER) as replica, router_over(replica, doctor__on=False) as up:
        await sent(up, broken("clock")[:2])
        assert (await got(f"{up.admin_url}/doctor"))[0] == 404
        assert (await got(f"{up.admin_url}/hits"))[1]["total"]["requests"] == 2


async def test_text_is_looked_at_where_it_may_be_kept():
    async with fake_replica(ANSWER) as replica, router_over(replica, doctor__keep_text=True) as up:
        await sent(up, broken("clock")[:3])
        _, told = await got(f"{up.admin_url}/doctor")
        assert told["text"]["requests"] >= 1


async def test_a_fault_of_the_doctor_fails_no_request(monkeypatch, caplog):
    def fault(*_):
        raise ValueError("bank of secrets")

    monkeypatch.setattr("router.doctor.live.asked", fault)
    async with fake_replica(ANSWER) as replica, router_over(replica) as up:
        with caplog.at_level(logging.ERROR):
            await sent(up, broken("clock")[:1])
    assert "could not look" in caplog.text
    assert "secrets" not in caplog.text


async def test_a_dry_run_is_not_counted():
    async with fake_replica(ANSWER) as replica, router_over(replica) as up:
        async with aiohttp.ClientSession() as client, client.post(f"{up.admin_url}/explain", json=broken("clock")[0]):
            pass
        assert (await got(f"{up.admin_url}/doctor"))[1]["routes"] == []
    assert chunk(b"")
