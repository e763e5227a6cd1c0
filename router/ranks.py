"""Data-parallel ranks: one server with several engines behind it, each with a prefix cache of its own.

A backend is then (URL, rank), written as one URL whose fragment is the rank: `http://10.0.0.1:8000#1`. Requests carry
`X-data-parallel-rank`, and engines' numbers and events are told apart by rank (vLLM 0.32; without the header its own
balancer alternates, and equal prompts miss). The one rule: a fragment is identity and is never sent.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final

from router.engine_metrics import parse
from router.probes import ProbeError
from router.sections import ReplicaAddress

_log: Final = logging.getLogger("router.ranks")

AUTO, OFF = "auto", "off"
_RANK: Final = re.compile(r"#(\d+)$")
_MOST: Final = 64

Ask = Callable[[str, str], Awaitable[tuple[int, bytes]]]
"""Status and body of a GET: a URL and a path. Raises `ProbeError`."""


def rank_of(url: str) -> int | None:
    """The rank a replica's URL names; None for a whole server."""
    found = _RANK.search(url)
    return int(found[1]) if found else None


def rank_header(url: str) -> bytes:
    """The header line that leads to the rank a URL names, after the end of the line before; empty without a rank."""
    rank = rank_of(url)
    return b"" if rank is None else b"\r\nX-data-parallel-rank: %d" % rank


class Ranks:
    """Makes the replicas of a server with ranks."""

    def __init__(self, setting: str, ask: Ask) -> None:
        """`setting` is `auto`, `off` or how many; a replica's own `data_parallel_ranks` goes before it."""
        self._setting = setting
        self._ask = ask

    def __repr__(self) -> str:
        return f"<Ranks {self._setting}>"

    async def split(self, address: ReplicaAddress) -> tuple[ReplicaAddress, ...]:
        """One replica for each engine behind an address: `r1` becomes `r1/0`, `r1/1`, …; alone it stays as it is."""
        setting = address.data_parallel_ranks or self._setting
        count = await self._counted(address) if setting == AUTO else 1 if setting == OFF else int(setting)
        if setting == OFF or (setting == AUTO and count == 1):
            return (address,)
        return tuple(
            address.model_copy(update={"name": f"{address.name}/{rank}", "url": f"{address.url}#{rank}"})
            for rank in range(count)
        )

    async def _counted(self, address: ReplicaAddress) -> int:
        """Engines that a server's metrics name; 1 while it can't be asked."""
        try:
            status, body = await self._ask(address.url, "/metrics")
        except ProbeError as error:
            _log.warning(
                "replica %s (%s) %s; it counts as one engine, set data_parallel_ranks to their number",
                address.name,
                address.url,
                error,
            )
            return 1
        return min(_MOST, max(1, parse(body.decode("utf-8", "replace")).engines)) if status == 200 else 1
