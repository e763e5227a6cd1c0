"""Follows the KV events of every replica, and says how far each can be believed.

One task per replica: find its publishers, listen to all of them, and when the events can't be used, take back what they
told, so that the replica is known by the router's own memory again, and try later. The one rule: no trouble with
events ever touches a request. Not here: one publisher (`kv_feed`), and what its batches mean (`kv_publisher`).
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial

import zmq.asyncio

from policies.blocks import Chain
from policies.engine_hashes import FIXED_SEED
from policies.fleet import Fleet
from router.kv_blocks import MOST_BLOCKS
from router.kv_feed import CONNECTED, REFUSED, Feed, FeedError
from router.kv_followed import Followed, silence
from router.kv_publisher import Publisher
from router.kv_sources import AUTO, OFF, REMEDY, Source, configured, told
from router.kv_standing import KvState as KvState
from router.probes import ProbeError
from router.ranks import rank_of

_log = logging.getLogger("router.kv_events")

_FIRST_RETRY_S, _LONGEST_RETRY_S = 5.0, 240.0
_TICK_S = 1.0
_STRANGE_PROMPTS = 8
"""Computed in a row and not told: the events are about something else. Fewer on further tries."""

Ask = Callable[[str, str], Awaitable[tuple[int, bytes]]]
"""Status and body of a GET: the replica's URL and a path. Raises `ProbeError`."""


class KvEvents:
    """The events of a fleet's replicas, inside `async with`; `follow` adds one that the fleet knows already."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        ask: Ask,
        root: Callable[[str], str | None],
        untold: Callable[[str], None],
        capacity_blocks: Callable[[str], int | None] = lambda _: None,
        seeds: tuple[str, ...] = (),
        first_retry_s: float = _FIRST_RETRY_S,
        lost_s: float = 30.0,
        replay_timeout_s: float = 5.0,
        strange_s: float = 5.0,
    ) -> None:
        """`root` and `capacity_blocks` tell a replica's model and how many blocks it can hold, as far as known.

        `untold` is called when what a replica's events told no longer counts. `seeds` are values of PYTHONHASHSEED to
        try besides vLLM's own and 0. A publisher that is out of reach for `lost_s` has told nothing; one that tells of
        no prompt for `strange_s` tells of something else.
        """
        self._fleet = fleet
        self._ask = ask
        self._root = root
        self._untold = untold
        self._capacity_blocks = capacity_blocks
        self._seeds = (FIXED_SEED, "0", *seeds)
        self._first_retry_s = first_retry_s
        self._lost_s = lost_s
        self._replay_timeout_s = replay_timeout_s
        self._strange_s = strange_s
        self._followed: dict[str, Followed] = {}
        self._context: zmq.asyncio.Context | None = None

    def __repr__(self) -> str:
        return f"<KvEvents {', '.join(f'{one.name} {one.standing().word}' for one in self._followed.values())}>"

    async def __aenter__(self) -> "KvEvents":
        self._context = zmq.asyncio.Context()
        for followed in self._followed.values():
            self._begin(followed)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self._ended(followed) for followed in self._followed.values()))
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def follow(self, name: str, url: str, setting: str) -> None:
        """`setting` is `auto`, `off` or what `kv_sources.configured` reads."""
        followed = self._followed[name] = Followed(name, url, setting)
        if setting == OFF:
            followed.reason, followed.looked = "kv_events is off", True
        if self._context is not None:
            self._begin(followed)

    async def unfollow(self, name: str) -> None:
        """Stop listening, before the replica leaves the fleet."""
        await self._ended(self._followed.pop(name))

    def restarted(self, name: str) -> None:
        """The replica's process is another one: nothing told before counts. Call it before the fleet is told."""
        followed = self._followed.get(name)
        if followed is not None:
            followed.wake.set()
            for feed in followed.feeds:
                feed.doubted()

    def disbelieved(self, name: str) -> None:
        """A replica's events told of blocks that it does not have."""
        for feed in self._followed[name].feeds if name in self._followed else ():
            feed.disbelieved()

    def removed_s(self, name: str) -> float:
        """When a replica's events last told of a block that it gave up; -inf for never."""
        feeds = self._followed[name].feeds if name in self._followed else ()
        return max((feed.removed_s for feed in feeds), default=-math.inf)

    def reloaded(self, name: str, adapter: str) -> None:
        """A replica has loaded an adapter from elsewhere, under the name it had."""
        for feed in self._followed[name].feeds if name in self._followed else ():
            feed.reloaded(adapter)

    def learnt(self) -> None:
        """The replicas' models are known now, or changed: whoever waits for that need not."""
        for followed in self._followed.values():
            if not followed.feeds:
                followed.wake.set()

    def states(self) -> tuple[KvState, ...]:
        return tuple(followed.state() for followed in self._followed.values())

    # -- one replica -----------------------------------------------------------------------------------------------

    def _begin(self, followed: Followed) -> None:
        if followed.setting != OFF:
            task = asyncio.create_task(self._follow(followed), name=f"KV events of {followed.name}")
            followed.task = task
        followed.say()

    async def _ended(self, followed: Followed) -> None:
        if followed.task is not None:
            followed.task.cancel()
            await asyncio.gather(followed.task, return_exceptions=True)

    async def _follow(self, followed: Followed) -> None:
        while True:
            followed.wake.clear()
            sources = await self._sources(followed)
            followed.looked = not sources
            followed.endpoints = tuple(source.endpoint for source in sources)
            followed.trouble, followed.proved = followed.trouble if sources else "", False
            if sources:
                try:
                    await self._listened(followed, sources)
                except FeedError as error:
                    followed.trouble = str(error)
                except Exception as error:
                    _log.exception("KV events of %s: a fault of the router's own", followed)
                    followed.trouble = f"reading its events failed ({type(error).__name__})"
                told_before = any(feed.publisher.heard for feed in followed.feeds)
                followed.tries = 0 if followed.proved else followed.tries
                followed.parted()
                if told_before:
                    self._untold(followed.name)
            followed.say()
            try:
                async with asyncio.timeout(min(self._first_retry_s * 2 ** min(followed.tries, 10), _LONGEST_RETRY_S)):
                    await followed.wake.wait()
            except TimeoutError:
                followed.tries += 1
            else:
                followed.tries = 0

    async def _sources(self, followed: Followed) -> tuple[Source, ...]:
        """The publishers of a replica whose model is known; none, with the reason, when they can't be had."""
        root = self._root(followed.name)
        if root is None:
            followed.reason = "its model is not known yet"
            return ()
        followed.root = root
        rank = rank_of(followed.url)
        if followed.setting != AUTO:
            return configured(followed.setting, followed.url, rank or 0)
        try:
            status, body = await self._ask(followed.url, "/kv_event_sources")
        except ProbeError as error:
            followed.reason = str(error)
            return ()
        sources = told(body, followed.url) if status == 200 else ()
        sources = tuple(source for source in sources if rank in (None, source.rank))
        if status in (404, 405):
            followed.reason = (
                "does not tell of KV events (older vLLM); where it publishes any, set kv_events = ENDPOINT"
            )
        elif status != 200:
            followed.reason = f"answered {status} to /kv_event_sources; set kv_events = ENDPOINT"
        elif not sources:
            followed.reason = f"publishes no KV events; {REMEDY}"
        return sources

    async def _listened(self, followed: Followed, sources: tuple[Source, ...]) -> None:
        """Listen to all publishers until one can't be used. Raises `FeedError`."""
        assert self._context is not None, "events are followed inside `async with`"  # noqa: S101
        name = followed.name
        followed.since_s = time.monotonic()
        for source in sources:
            publisher = Publisher(
                self._fleet, name, root=partial(Chain.root, followed.root), alone=len(sources) == 1, seeds=self._seeds
            )
            feed = Feed(
                self._context,
                source,
                publisher,
                told_as=name,
                timeout_s=self._replay_timeout_s,
                complaints=followed.complaints,
            )
            followed.feeds.append(feed)
        followed.looked = True
        tasks = [asyncio.create_task(feed.run(), name=str(feed)) for feed in followed.feeds]
        try:
            while True:
                self._look(followed)
                done, _ = await asyncio.wait(tasks, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self, followed: Followed) -> None:
        """Once a second: what changed, what can it hold, and is every publisher still there? Raises `FeedError`."""
        if self._root(followed.name) not in (None, followed.root):
            raise FeedError("serves another model than before")
        limit = self._capacity_blocks(followed.name) or MOST_BLOCKS
        for feed in followed.feeds:
            feed.publisher.blocks.limit_blocks = limit
            if feed.unreachable_s > self._lost_s:
                if feed.link != REFUSED:
                    feed.publisher.faults["unreachable"] += 1
                raise FeedError(silence(feed))
        self._listen_for_more(followed)
        self._believe(followed)
        followed.say()

    def _listen_for_more(self, followed: Followed) -> None:
        """A replica that takes prompts and tells of none for `lost_s` does not publish where the router listens."""
        now_s = time.monotonic()
        if followed.tells or not self._fleet.held_blocks(followed.name):
            followed.mute_since_s = None
        elif followed.mute_since_s is None:
            followed.mute_since_s = now_s
        mute = followed.mute_since_s is not None and now_s - followed.mute_since_s > self._lost_s
        if mute and not followed.mute:
            followed.faults["silent"] += 1
        followed.mute = mute

    def _believe(self, followed: Followed) -> None:
        """What a replica computes it must tell. Raises `FeedError` where it tells of something else."""
        unheard = self._fleet.landing.unheard(followed.name)
        if unheard is None or any(feed.link != CONNECTED for feed in followed.feeds):
            return
        prompts, lasted_s = unheard
        if not prompts:
            followed.proved = True
        elif prompts >= _STRANGE_PROMPTS >> min(2, followed.tries) and lasted_s >= self._strange_s:
            followed.faults["strange"] += 1
            where = " and ".join(followed.endpoints)
            raise FeedError(
                f"has KV events at {where} that tell nothing of the prompts it computes: they are another engine's, or"
                " its tokens are not the router's; correct kv_events or the tokenizer"
            )
