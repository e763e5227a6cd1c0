"""The page of the admin port: its events over sockets, and the whole of it in a real browser where there is one."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.app import running
from router.config import load
from router.page import FILES, MOST_WATCHERS
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
        assert sum(await cells(tab, "hit-table", 2)) == found["router_prompt_tokens_total"]
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
@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("dark", [False, True])
async def test_it_fits_and_can_be_read(tmp_path, width, dark):
    async with router_over_emulators() as (up, client), browser(tmp_path) as tab:
        await tab.open(up.admin_url + "/", width=width, dark=dark)
        await tab.until("document.getElementById('live').dataset.state === 'live'")
        await chatted(client, 2)
        await tab.until("document.querySelectorAll('#decisions details').length === 4")
        assert await tab.value("document.documentElement.scrollWidth <= innerWidth")
        for ink in ("body", "#about", ".word", ".small", "thead th", "output"):
            assert await tab.value(CONTRAST % ("body", ink)) >= 4.5, ink
        assert await tab.value(CONTRAST % ("button", "button")) >= 4.5
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
    async with router_over_emulators() as (up, client), browser(tmp_path) as tab:
        await tab.open(up.admin_url + "/")
        await tab.until("document.getElementById('live').dataset.state === 'live'")
        await chatted(client, 1)
        await tab.until("document.querySelector('#chart canvas')")
        assert await tab.value("document.querySelector('#chart canvas').getBoundingClientRect().width") > 600
        assert "%" in await tab.value("document.getElementById('now-delivered').textContent")
        await tab.value("document.getElementById('series').selectedIndex = 1")
        await tab.value("document.getElementById('series').dispatchEvent(new Event('change'))")
        assert await tab.value("document.getElementById('series').value") == f"route\n{CHAT}"
        assert tab.faults == []


@in_chromium
async def test_a_router_that_is_gone_is_told(tmp_path):
    async with browser(tmp_path) as tab:
        async with router_over_emulators() as (up, _):
            await tab.open(up.admin_url + "/")
            await tab.until("document.getElementById('live').dataset.state === 'live'")
        assert "trying again" in await tab.until(
            "document.getElementById('live').dataset.state === 'lost' && document.getElementById('live').textContent"
        )
