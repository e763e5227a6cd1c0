"""The page of the admin port: its events over sockets, and the whole of it in a real browser where there is one."""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from importlib.resources import files

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from router.app import running
from router.config import load
from router.page import FILES, HEADERS, MOST_WATCHERS
from tests.browser import CHROMIUM, browser
from tests.emulated import ASKED, CHAT, COMPLETIONS, emulated
from tests.fakes import until

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


@asynccontextmanager
async def router_over_emulators(**settings: object):
    """A router over two emulators and a replica that is not there, and a client of its public port."""
    replicas = [await emulated(name=f"r{number}") for number in (1, 2)]
    urls = [*(replica.url for replica in replicas), "http://127.0.0.1:9"]
    wanted = {"listen.port": 0, "admin.port": 0, "replicas": ",".join(urls), "tokenizer.where": "replica"}
    wanted |= {name.replace("__", "."): value for name, value in settings.items()}
    config, _ = load(flags={name: ("test", value) for name, value in wanted.items()})
    try:
        async with running(config) as up, aiohttp.ClientSession(up.url) as client:
            yield up, client
    finally:
        for replica in replicas:
            await replica.close()


async def chatted(client: aiohttp.ClientSession, times: int = 4) -> None:
    for _ in range(times):
        for path in (CHAT, COMPLETIONS):
            async with client.post(path, json={"model": "tiny", **ASKED[path]}) as answer:
                assert answer.status == 200
                await answer.read()


async def event(response: aiohttp.ClientResponse) -> tuple[str, dict]:
    """The next event: its name and its data."""
    async with asyncio.timeout(10):
        name = (await response.content.readuntil(b"\n")).decode().removeprefix("event: ").strip()
        data = (await response.content.readuntil(b"\n\n")).removeprefix(b"data: ")
    return name, json.loads(data)


@asynccontextmanager
async def watching(up):
    async with aiohttp.ClientSession(read_bufsize=1 << 20) as client, client.get(f"{up.admin_url}/events") as response:
        yield response


async def metrics_of(up) -> dict[str, float]:
    """Sums by name over all labels."""
    found: dict[str, float] = {}
    async with aiohttp.ClientSession() as client, client.get(f"{up.admin_url}/metrics") as answer:
        for family in text_string_to_metric_families(await answer.text()):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


# -- over sockets ------------------------------------------------------------------------------------------------------


async def test_files_come_with_headers_that_let_nothing_else_in():
    async with router_over_emulators() as (up, _), aiohttp.ClientSession(up.admin_url) as client:
        for path, (_, kind) in FILES.items():
            async with client.get(path) as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                text = await answer.text()
            if not path.startswith("/uplot"):
                assert not re.search(r"https?://", text), path
                assert "innerHTML" not in text
        async with aiohttp.ClientSession(up.url) as public, public.get("/events") as answer:
            assert answer.status == 404


async def test_events_tell_once_what_stays_and_then_what_changes():
    async with router_over_emulators(policy__shadow="round-robin") as (up, client):
        async with watching(up) as response:
            assert response.content_type == "text/event-stream"
            name, hello = await event(response)
            assert name == "hello"
            assert (hello["policy"], hello["shadow"], hello["history"]) == ("prefix-aware", "round-robin", [])
            assert (await event(response))[0] == "snapshot"
            await chatted(client, 1)
            while (seen := (await event(response))[1])["requests"] < 2:
                pass
        assert [one["route"] for one in seen["decisions"]] == [COMPLETIONS, CHAT]
        assert seen["decisions"][0]["why"]
        assert set(seen["hits"]["route"]) == {CHAT, COMPLETIONS}
        assert seen["shadow"]["agreed"] + seen["shadow"]["differed"] == 2
        assert "rather long prompt" not in json.dumps(seen)


async def test_nothing_is_kept_while_nobody_watches():
    async with router_over_emulators() as (up, client):
        ears = len(up.gateway._accounts.ears)
        await chatted(client, 1)
        async with watching(up) as response:
            await event(response)
            assert len(up.gateway._accounts.ears) == ears + 1
            assert (await event(response))[1]["decisions"] == []
        await until(lambda: len(up.gateway._accounts.ears) == ears)


async def test_watchers_share_one_snapshot_and_are_bounded():
    async with router_over_emulators() as (up, _), aiohttp.ClientSession(read_bufsize=1 << 20) as client:
        responses = [await client.get(f"{up.admin_url}/events") for _ in range(MOST_WATCHERS)]
        async with client.get(f"{up.admin_url}/events") as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
        seen: list[dict[float, dict]] = []
        for response in (responses[0], responses[-1]):
            assert (await event(response))[0] == "hello"
            told = [(await event(response))[1] for _ in range(3)]
            seen.append({one["time_s"]: one for one in told})
        both = seen[0].keys() & seen[1].keys()
        assert both
        assert all(seen[0][time_s] == seen[1][time_s] for time_s in both)
        for response in responses:
            response.close()
        async with watching(up) as response:
            assert response.status in (200, 503)


async def test_an_open_page_does_not_keep_the_router_from_ending():
    async with asyncio.timeout(20):
        async with router_over_emulators() as (up, _):
            client = aiohttp.ClientSession()
            response = await client.get(f"{up.admin_url}/events")
        assert response.status == 200
        await client.close()


# -- in a browser ------------------------------------------------------------------------------------------------------


async def cells(tab, table: str, column: int) -> list[float]:
    """The numbers of a column."""
    texts = f"[...document.querySelectorAll('#{table} tbody tr')].map((row) => row.cells[{column}].innerText)"
    return [float(text.replace(",", "")) for text in await tab.value(texts)]


@in_chromium
async def test_numbers_on_the_page_are_those_of_metrics(tmp_path):
    async with router_over_emulators(policy__shadow="round-robin") as (up, client), browser(tmp_path) as tab:
        await tab.open(up.admin_url + "/")
        await tab.until("document.getElementById('live').dataset.state === 'live'")
        await chatted(client)
        await tab.until("document.getElementById('figure-requests').textContent === '8'")
        found = await metrics_of(up)
        assert found["router_requests_total"] == 8
        assert sum(await cells(tab, "hit-table", 2)) == 2 * found["router_prompt_tokens_total"]  # by route, by replica
        assert sum(await cells(tab, "replica-table", 8)) == found["router_choices_total"]
        assert sum(await cells(tab, "loss-table", 1)) == found["router_lost_tokens_total"]
        assert await tab.value("document.getElementById('figure-replicas').textContent") == "2 of 3"
        delivered = await tab.value("document.querySelector('#hit-table tbody tr').cells[5].innerText")
        assert re.fullmatch(r"\d+\.\d %", delivered)
        assert await tab.value("document.querySelectorAll('#decisions details').length") == 8
        assert "round-robin would have chosen" in await tab.value("document.getElementById('shadow-line').textContent")
        assert tab.faults == []
        assert {url.rpartition("/")[0] for url in tab.loaded if not url.startswith("data:")} == {up.admin_url}


@in_chromium
async def test_it_works_by_keyboard_alone(tmp_path):
    async with router_over_emulators() as (up, client), browser(tmp_path) as tab:
        await tab.open(up.admin_url + "/")
        await tab.until("document.getElementById('live').dataset.state === 'live'")
        await chatted(client, 1)
        await tab.until("document.querySelectorAll('#decisions details').length === 2")
        order = []
        for _ in range(8):
            await tab.press("Tab", 9)
            order.append(await tab.value("document.activeElement.id || document.activeElement.tagName"))
            assert await tab.value("getComputedStyle(document.activeElement).outlineStyle") != "none", order
        assert order == ["A", "pause", "DIV", "series", "window", "DIV", "DIV", "SUMMARY"]
        await tab.press("Enter", 13)
        assert await tab.until("document.querySelector('#decisions details').open")
        assert "cached" in await tab.until("document.querySelector('#decisions .inside p').textContent")
        await chatted(client, 1)
        await tab.until("document.querySelectorAll('#decisions details').length === 4")
        assert await tab.value("document.activeElement.parentElement.open") is True  # news does not move the focus


@in_chromium
async def test_pause_holds_still(tmp_path):
    async with router_over_emulators() as (up, client), browser(tmp_path) as tab:
        await tab.open(up.admin_url + "/")
        await tab.until("document.getElementById('live').dataset.state === 'live'")
        await tab.value("document.getElementById('pause').click()")
        await chatted(client, 1)
        await tab.until("performance.getEntriesByType('resource').length > 0")
        assert await tab.value("document.getElementById('figure-requests').textContent") == "0"
        assert await tab.value("document.getElementById('live').textContent") == "paused"
        await tab.value("document.getElementById('pause').click()")
        await tab.until("document.getElementById('figure-requests').textContent === '2'")


@in_chromium
async def test_a_router_that_is_gone_is_told(tmp_path):
    async with browser(tmp_path) as tab:
        async with router_over_emulators() as (up, _):
            await tab.open(up.admin_url + "/")
            await tab.until("document.getElementById('live').dataset.state === 'live'")
        assert "trying again" in await tab.until(
            "document.getElementById('live').dataset.state === 'lost' && document.getElementById('live').textContent"
        )


# -- the page alone, over a router that is made up ---------------------------------------------------------------------

REPLICA = {
    "name": "r1",
    "url": "http://10.0.0.1:8001",
    "state": "open",
    "reason": "",
    "usable": True,
    "restarts": 0,
    "failures": 0,
    "chosen": 900,
    "in_flight": 3,
    "pending_prefill_tokens": 1200,
    "running": 3,
    "waiting": 0,
    "kv_used_fraction": 0.42,
    "held_blocks": 11_000,
    "capacity_blocks": 20_000,
    "standing": "EXACT",
    "standing_reason": "block hashes are sha256_cbor with vLLM's own seed",
    "degraded": False,
}
CLOSED = {
    **REPLICA,
    "name": "r2",
    "state": "closed",
    "reason": "refused the connection",
    "usable": False,
    "restarts": 2,
    "failures": 14,
    "kv_used_fraction": None,
    "running": None,
    "waiting": None,
    "capacity_blocks": None,
    "standing": "APPROXIMATE",
    "standing_reason": "publishes no KV events; start vLLM with --kv-events-config <what>",
}
GAP = {**REPLICA, "name": "r3", "standing": "ALIAS", "standing_reason": "3 batches are missing", "degraded": True}
SEEN = {
    "time_s": 1_800_000_000.0,
    "replicas": [REPLICA, CLOSED, GAP],
    "requests": 1800,
    "refused": 3,
    "retries": 2,
    "policy_failures": 0,
    "hits": {
        "route": {CHAT: [1_000_000, 900_000, 850_000, 1_000_000, 800_000], "<b>x</b>": [10, 0, 0, 0, 0]},
        "tenant": {"acme": [600_000, 500_000, 450_000, 600_000, 440_000], "b & c": [1, 0, 0, 1, 0]},
        "replica": {"r1": [400_000, 300_000, 300_000, 400_000, 300_000]},
    },
    "losses": {"workload": 100_000, "load": 50_000, "stale": 50_000},
    "shadow": {"agreed": 75, "differed": 25, "failed": 1, "tokens": {"live": 1000, "shadow": 900}},
    "decisions": [],
}
FINDING = {
    "route": CHAT,
    "kind": "timestamp",
    "what": "a timestamp",
    "sure": "certain",
    "breaks": True,
    "path": "messages[0].content",
    "role": "system",
    "offset": 14,
    "block": 3,
    "lost_tokens": 120_000,
    "lost_fraction": 0.61,
    "lost_tokens_per_hour": 480_000,
    "advice": "move it behind what stays the same",
}


DECISION = {
    "id": "7",
    "time_s": 1_800_000_000.0,
    "route": CHAT,
    "model": "m",
    "tenant": "acme",
    "replica": "r1",
    "reason": "load",
    "why": "80 more tokens are cached on r2, but 5 in flight and 7,000 tokens waiting there; 1 in flight here",
    "prompt_tokens": 1000,
    "available_tokens": 960,
    "predicted_tokens": 880,
    "delivered_tokens": None,
    "basis": "exact",
    "status": 200,
    "outcome": "ok",
    "ttft_s": None,
    "duration_s": 1.5,
    "retries": 0,
    "candidates": [
        {"name": name, "matched_tokens": 880, "in_flight": 1, "pending_prefill_tokens": 20, "cost_tokens": cost}
        for name, cost in (("r1", 200.5), ("r2", None))
    ],
    "more_candidates": 3,
}


@asynccontextmanager
async def made_up(*snapshots: dict, **hello: object):
    """The page, told only these snapshots; the stream stays open."""
    told = {"version": "0", "policy": "prefix-aware", "shadow": None, "doctor": False, "history": [], **hello}
    ending = asyncio.Event()

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        for name, data in (("hello", told), *(("snapshot", one) for one in snapshots)):
            await response.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        await ending.wait()
        return response

    async def doctor(_: web.Request) -> web.Response:
        return web.json_response({"routes": [{"looked_at": 250}], "findings": [FINDING]})

    async def file(request: web.Request) -> web.Response:
        name, kind = FILES[request.path]
        return web.Response(
            body=(files("router") / "data" / "page" / name).read_bytes(), content_type=kind, headers=HEADERS
        )

    application = web.Application()
    application.add_routes([web.get("/events", events), web.get("/doctor", doctor)])
    application.add_routes([web.get(path, file) for path in FILES])
    server = TestServer(application)
    await server.start_server()
    try:
        yield str(server.make_url("/"))
    finally:
        ending.set()
        await server.close()


@in_chromium
async def test_it_fits_and_can_be_read(tmp_path):
    async with (
        made_up({**SEEN, "decisions": [DECISION]}, doctor=True, shadow="lmetric") as url,
        browser(tmp_path) as tab,
    ):
        for width, dark in ((1200, False), (1200, True), (360, False), (360, True)):
            await tab.open(url, width=width, dark=dark)
            await tab.until("!document.getElementById('doctor').hidden")
            await tab.value("document.querySelector('#decisions details').open = true")
            await tab.until("document.querySelector('#decisions .inside table')")
            assert await tab.value("document.documentElement.scrollWidth <= innerWidth"), width
            for ink in ("body", "#about", ".word", ".small", "thead th", "output", ".inside .soft"):
                assert await tab.value(CONTRAST % ("body", ink)) >= 4.5, (ink, dark)
            assert await tab.value(CONTRAST % ("button", "button")) >= 4.5
            grounds = await tab.value("getComputedStyle(document.body).backgroundColor")
            assert grounds == ("rgb(21, 24, 27)" if dark else "rgb(251, 251, 250)")
        assert await tab.value("[...document.querySelectorAll('th')].every((head) => head.scope)")
        assert tab.faults == []


CONTRAST = """(() => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.querySelector("%s")).backgroundColor);
  const ink = light(getComputedStyle(document.querySelector("%s")).color);
  return (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05);
})()"""
"""WCAG 2.2, contrast ratio."""


@in_chromium
async def test_the_chart_draws_what_has_happened(tmp_path):
    sums = [{CHAT: [100 * step, 90 * step, 80 * step, 100 * step, 70 * step]} for step in range(1, 30)]
    points = [{"time_s": 1000.0 + 5 * place, "hits": {"route": one, "tenant": {}}} for place, one in enumerate(sums)]
    last = {**SEEN, "time_s": 1141.0, "hits": points[-1]["hits"]}
    async with made_up(last, history=points) as url, browser(tmp_path) as tab:
        await tab.open(url)
        await tab.until("document.querySelector('#chart canvas')")
        assert await tab.value("document.querySelector('#chart canvas').getBoundingClientRect().width") > 600
        rates = (
            "['available', 'predicted', 'delivered'].map((word) => document.getElementById(`now-${word}`).textContent)"
        )
        assert await tab.value(rates) == ["90.0 %", "80.0 %", "70.0 %"]
        await tab.value("document.getElementById('series').selectedIndex = 1")
        await tab.value("document.getElementById('series').dispatchEvent(new Event('change'))")
        assert await tab.value("document.getElementById('series').value") == f"route\n{CHAT}"
        assert tab.faults == []


@in_chromium
async def test_everything_there_may_be_is_shown(tmp_path):
    async with made_up(SEEN, doctor=True, shadow="lmetric") as url, browser(tmp_path) as tab:
        await tab.open(url)
        await tab.until("document.getElementById('figure-requests').textContent === '1,800'")
        text = await tab.until("!document.getElementById('doctor').hidden && document.body.innerText")
        for words in (
            "refused the connection, 2 restarts, 14 failures",
            "11,000 of 20,000",
            "left for a less busy replica",
            "r2: start vLLM with --kv-events-config <what>",
            "lmetric would have chosen another replica for 25 of 100 requests (25.0 %)",
            "100 fewer prompt tokens would be computed (10.0 %). It failed once.",
            "1 place breaks the prefix; 250 prompts looked at.",
            "messages[0].content (system), character 14, block 3: a timestamp (certain)",
            "120,000 tokens computed again, 61.0 % of the route's, 480,000 per hour. move it behind",
            "<b>x</b>",
            "b & c",
            "r1\treplica\t400,000\t75.0 %\t75.0 %\t75.0 %",
        ):
            assert words in text
        assert await cells(tab, "loss-table", 1) == [100_000, 50_000, 50_000]
        assert await tab.value("document.querySelectorAll('#hit-table b').length") == 0
        assert (
            await tab.value("document.querySelector('#hit-table tr:nth-child(1) td:last-child').innerText") == "80.0 %"
        )
        assert tab.faults == []


@in_chromium
async def test_the_table_over_a_window_counts_from_its_beginning(tmp_path):
    sums = [{CHAT: [100 * step, 50 * step, 50 * step, 100 * step, 80 * step - 20]} for step in range(1, 8)]
    points = [{"time_s": 1000.0 + 60 * place, "hits": {"route": one, "tenant": {}}} for place, one in enumerate(sums)]
    last = {**SEEN, "time_s": 1360.0, "hits": points[-1]["hits"]}
    async with made_up(last, history=points) as url, browser(tmp_path) as tab:
        await tab.open(url)
        await tab.until("document.querySelectorAll('#hit-table tbody tr').length === 1")
        assert await cells(tab, "hit-table", 2) == [700]
        await tab.value("document.getElementById('window').value = '60'")
        await tab.value("document.getElementById('window').dispatchEvent(new Event('change'))")
        assert await cells(tab, "hit-table", 2) == [100]
        shown = await tab.value(
            "[...document.querySelector('#hit-table tbody tr').cells].map((cell) => cell.innerText)"
        )
        assert shown[3:] == ["50.0 %", "50.0 %", "80.0 %"]
