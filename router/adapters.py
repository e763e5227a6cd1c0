"""Notices that a LoRA adapter was loaded from elsewhere under the name it had: what was cached with it counts no more.

`/v1/models` tells each adapter's path, which vLLM makes a part of its block hashes (from 0.31); loaded again from the
same path it goes on to find what it had cached, changed weights or not. The one rule: per replica, for replicas load
an adapter one after the other, and may have it in different places. Not here: who asks for `/v1/models` (`health`).
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from policies.fleet import Fleet
from router.outcome import Outcome
from router.placing import Placed

_log = logging.getLogger("router.adapters")

_ADAPTERS = 4096  # names remembered, those of one replica and those of all; the longest unseen makes room
_STARTS = 4096  # first blocks remembered of an adapter's prompts
_ALL_STARTS = 65_536  # of all adapters', 10 MB


class Adapters:
    """Told of every `/v1/models` and of every request that has ended."""

    def __init__(self, fleet: Fleet, reloaded: Callable[[str, str], None]) -> None:
        """`reloaded` is told a replica and an adapter, for what the replica's events have told."""
        self._fleet = fleet
        self._reloaded = reloaded
        self._paths: dict[str, dict[str, str]] = {}
        self._starts: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()
        """By adapter, the one that was used last at the end."""
        self._all_starts = 0

    def __repr__(self) -> str:
        return f"<Adapters {', '.join(sorted(self._starts)) or 'none'}>"

    def told(self, name: str, entries: Iterable[Mapping[str, Any]] | None) -> None:
        """A replica's `/v1/models`; None when it leaves or tells none. An adapter that is unloaded keeps its path."""
        if entries is None:
            self._paths.pop(name, None)
            return
        before = self._paths.setdefault(name, {})
        for entry in entries:
            adapter, path = entry["id"], entry.get("root")
            if not entry.get("parent") or not isinstance(path, str):
                continue
            if before.get(adapter, path) != path:
                starts = self._starts.get(adapter, ())
                _log.info(
                    "replica %s serves adapter %s from another path; what it cached of it counts no more", name, adapter
                )
                self._fleet.lost(name, starts)
                self._reloaded(name, adapter)
            before.pop(adapter, None)
            before[adapter] = path
            if len(before) > _ADAPTERS:
                del before[next(iter(before))]
            self._starts.setdefault(adapter, OrderedDict())
            if len(self._starts) > _ADAPTERS:
                self._all_starts -= len(self._starts.popitem(last=False)[1])

    def ended(self, placed: Placed, _outcome: Outcome) -> None:
        """Remember where an adapter's prompts begin."""
        if not self._starts:
            return
        starts = self._starts.get(placed.request.model)
        if starts is None or not placed.request.blocks:
            return
        first = placed.request.blocks[0]
        self._all_starts += first not in starts
        starts[first] = None
        starts.move_to_end(first)
        if len(starts) > _STARTS:
            starts.popitem(last=False)
            self._all_starts -= 1
        self._starts.move_to_end(placed.request.model)
        if self._all_starts > _ALL_STARTS:
            oldest = next(other for other in self._starts.values() if other)
            self._all_starts -= len(oldest)
            oldest.clear()
