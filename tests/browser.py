"""A headless Chromium, driven over its DevTools socket: what a page logs, holds and looks like.

The one rule: everything waits for an event or a condition, bounded in time; nothing is loaded but what is asked for.
"""

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium")
_BOUND_S = 30.0


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.faults: list[str] = []
        """Exceptions, and lines of the console that are no plain log: failed loads and refused policies too."""
        self.loaded: list[str] = []
        """Every address that was asked for."""

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self._note(told["method"], told["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.faults.append(json.dumps(params["entry"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(json.dumps(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.loaded.append(params["request"]["url"])

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(_BOUND_S):
            told = await self._answers[number]
        assert "error" not in told, told
        return dict(told["result"])

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, as JSON."""
        told = await self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str) -> Any:
        """The first truthy value of an expression, looked at on every frame."""
        look = f"() => {{ try {{ return {expression}; }} catch {{ return null; }} }}"
        wait = "const step = () => { const seen = look(); if (seen) done(seen); else setTimeout(step, 20); }; step();"
        async with asyncio.timeout(_BOUND_S):
            return await self.value(f"new Promise((done) => {{ const look = {look}; {wait} }})")

    async def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.do("Emulation.setEmulatedMedia", features=[scheme])
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        await self.do("Page.navigate", url=url)
        await self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    async def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def screenshot(self, file: Path) -> None:
        told = await self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(told["data"]))


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, which ends with the block."""
    assert CHROMIUM is not None
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
    words += ["--disable-dev-shm-usage", "--disable-background-networking", f"--user-data-dir={profile}"]
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *words, "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(_BOUND_S):
            port = 0
            while not port:
                line = (await process.stderr.readline()).decode()
                assert line, "chromium ended before it listened"
                found = re.search(r"DevTools listening on ws://[^:]+:(\d+)/", line)
                port = int(found[1]) if found else 0
        silent = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (page,) = [one for one in await answer.json() if one["type"] == "page"]
            async with client.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=1 << 26) as socket:
                tab = Tab(socket)
                listening = asyncio.create_task(tab.listen())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.do(f"{domain}.enable")
                yield tab
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        silent.cancel()
        await asyncio.gather(silent, return_exceptions=True)
    finally:
        process.kill()
        await process.wait()
