"""A router's life as a process: signals, the configuration read again, and an end that loses nothing.

SIGTERM and SIGINT: `/health` fails for `unready_s`, then nothing new is taken and what runs has `drain_s`; a second one
ends at once. SIGHUP, or a change of the file: the configuration is read again. Not here: wiring (`app`).
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from router.app import Running, running
from router.config import Config
from router.rereading import Reread

_log = logging.getLogger("router.serving")

_SWITCH_S: Final = 0.001
"""How long the loop waits for the interpreter while another thread computes: a scrape's text, a very long prompt."""


def serve(config: Config, again: Callable[[], Config], file: Path | None = None) -> int:
    """Run until a signal, and return the exit code. `again` reads the configuration anew; `file` is watched."""
    sys.setswitchinterval(_SWITCH_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(lived(config, again, file))
    return int(uvloop.run(lived(config, again, file)))


async def lived(config: Config, again: Callable[[], Config], file: Path | None = None) -> int:
    """One life, on a loop whose signals belong to it."""
    loop = asyncio.get_running_loop()
    stopping, now, hung_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def told() -> None:
        (now if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    async with running(config) as up:
        gc.freeze()  # what a router is made of stays: looking through it even once would hold the loop for 50 ms
        tasks = [asyncio.create_task(_reread_on(hung_up, up, again), name="SIGHUP")]
        if file is not None:
            tasks.append(asyncio.create_task(_watched(file, hung_up), name=f"watches {file.name}"))
        await stopping.wait()
        for task in tasks:
            task.cancel()
        ending = asyncio.ensure_future(ended(up))
        hurried = asyncio.ensure_future(now.wait())
        await asyncio.wait([ending, hurried], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        hurried.cancel()
        await asyncio.gather(ending, hurried, *tasks, return_exceptions=True)
    return 0


async def ended(up: Running) -> bool:
    """Say that the router is leaving, then take no new requests; True when all that ran has ended in time."""
    config = up.reload.config
    up.stopping.set()
    if config.unready_s:
        _log.info("stopping: /health fails for %g s, and requests are still served", config.unready_s)
        await asyncio.sleep(config.unready_s)
    _log.info("stopping: no new requests; running ones have %g s", config.drain_s)
    return await up.drained(config.drain_s)


async def _reread_on(told: asyncio.Event, up: Running, again: Callable[[], Config]) -> None:
    while True:
        await told.wait()
        told.clear()
        try:
            await up.reload.reloaded(again)
        except Exception:
            _log.exception("taking the new configuration failed by a fault of the router's own")


async def _watched(file: Path, changed: asyncio.Event) -> None:
    """Look at the file once a second; it is read where the rest of the configuration is."""
    watched = Reread(file, lambda _: None)
    while True:
        await asyncio.sleep(1.0)
        if await watched.looked():
            changed.set()
