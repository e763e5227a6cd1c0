"""Whether replicas read the salt on `/v1/messages`, asked before any tenant's prompt goes there.

vLLM had no `cache_salt` on that path before PR 49498 and passes over members it does not know, so a tenant's prompt
would land in the cache of all without a word. An empty salt tells: who reads it answers 400 (vLLM 0.32). The one rule:
a replica is trusted once it has answered so, and anew after each restart. Not here: the other paths, whose salts are
older than anything the router works with, and proofs by pairs (`isolation`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

import aiohttp
import orjson

from router.errors import NoReplicaAvailable, NotSalted
from router.health import ReplicaState

MESSAGES = "/v1/messages"

_log = logging.getLogger("router.tenants")

_RETRY_AFTER_S = 2
_ABSENT = (404, 405, 501)


class SaltProof:
    """What is known of each replica."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        states: Callable[[], Iterable[ReplicaState]],
        *,
        interval_s: float = 1.0,
    ) -> None:
        """`client` brings the replicas' key; `states` are the replicas watched now."""
        self._client = client
        self._states = states
        self._interval_s = interval_s
        self._reads: dict[tuple[str, str, int], bool] = {}
        """By name, URL and restarts seen."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<SaltProof of {sum(self._reads.values())} replicas>"

    async def __aenter__(self) -> "SaltProof":
        self._task = asyncio.create_task(self._watch(), name="salt proof")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check(self, route: str) -> None:
        """Raise `NotSalted` if a replica passes over this path's salt, `NoReplicaAvailable` while that is not known."""
        if route != MESSAGES:
            return
        for state in self._states():
            reads = self._reads.get(_key(state))
            if reads is False:
                raise NotSalted(
                    f"a replica passes over cache_salt on {route}, so tenants could not be kept apart there; use"
                    " /v1/chat/completions until it runs a newer vLLM"
                )
            if reads is None and state.usable:
                raise NoReplicaAvailable(
                    f"whether replica {state.name} reads cache_salt on {route} is not known yet; try again in"
                    f" {_RETRY_AFTER_S} s",
                    retry_after_s=_RETRY_AFTER_S,
                )

    async def first_answers(self, within_s: float) -> None:
        """Ask, and return when all have answered, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.looked()

    async def looked(self) -> None:
        """Ask the usable replicas that were not asked since they last started."""
        states = [state for state in self._states() if state.usable]
        self._reads = {key: self._reads[key] for key in map(_key, self._states()) if key in self._reads}
        asked = [state for state in states if _key(state) not in self._reads]
        for state, reads in zip(asked, await asyncio.gather(*map(self._asked, asked)), strict=True):
            if reads is None:
                continue
            self._reads[_key(state)] = reads
            if not reads:
                _log.error(
                    "replica %s (%s) passes over cache_salt on %s: the path is closed to tenants; update its vLLM",
                    state.name,
                    state.url,
                    MESSAGES,
                )

    async def _asked(self, state: ReplicaState) -> bool | None:
        """Whether a replica reads the salt there, or does not serve the path; None when it did not say."""
        model = state.models[0] if state.models else ""
        body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "cache_salt": ""}
        headers = {"Content-Type": "application/json"}
        try:
            async with self._client.post(state.url + MESSAGES, data=orjson.dumps(body), headers=headers) as response:
                told = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        if response.status in _ABSENT:
            return True
        if response.status == 200:
            return False
        return True if response.status in (400, 422) and b"cache_salt" in told else None

    async def _watch(self) -> None:
        while True:
            try:
                await self.looked()
            except Exception:  # whatever it is, the next look must come
                _log.exception("asking replicas about cache_salt failed")
            await asyncio.sleep(self._interval_s)


def _key(state: ReplicaState) -> tuple[str, str, int]:
    return state.name, state.url, state.restarts
