"""What is known of one replica's KV events while they are followed, in a word with its reason.

The one rule: a replica tells by events once they have told a block that can be used, and not before, whatever it sends.
A trouble is not forgotten because it is tried again: its reason stands until the next try has had time to be better.
Not here: following (`kv_events`), and one publisher (`kv_feed`).
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from router.kv_complaints import Complaints
from router.kv_feed import CONNECTED, CONNECTING, REFUSED, Feed
from router.kv_replay import MOST_MESSAGE_BYTES
from router.kv_sources import REMEDY
from router.kv_standing import ALIAS, APPROXIMATE, EXACT, KvState, Standing

_log = logging.getLogger("router.kv_events")

UNHEARD = "has published no KV events yet"
"""Why a cache is not known whose publisher is connected."""

_CONNECTS_S = 1.0
_BETTERS_S = 10.0
_BREAKS = 3  # lost connections without an event in between
_QUIET_S = 60.0


@dataclass(slots=True)
class Followed:
    """One replica."""

    name: str
    url: str
    setting: str
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    feeds: list[Feed] = field(default_factory=list)
    since_s: float = 0.0
    """When these began to listen."""
    root: str = ""
    looked: bool = False
    reason: str = "its publishers are not known yet"
    trouble: str = ""
    """Why listening ended the last time; empty when it did not."""
    proved: bool = False
    """Whether what is told now was about a prompt that the replica had been sent."""
    tries: int = 0
    """In a row that did not prove anything."""
    said: Standing | None = None
    said_s: float = 0.0
    mute_since_s: float | None = None
    """Since when it was sent prompts and tells of none."""
    mute: bool = False
    endpoints: tuple[str, ...] = ()
    complaints: Complaints = field(default_factory=Complaints)
    batches: int = 0
    blocks: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"replica {self.name} ({self.url})"

    @property
    def tells(self) -> bool:
        """Whether any block was told that can be used."""
        return any(_tells(feed) for feed in self.feeds)

    def standing(self) -> Standing:
        telling = [feed.publisher for feed in self.feeds if _tells(feed)]
        if not telling:
            return Standing(APPROXIMATE, self._why(), "events are missing" if self.mute else "")
        gaps = [publisher.degraded for publisher in telling if publisher.degraded]
        gaps += [silence(feed) for feed in self.feeds if feed.link != CONNECTED]
        words = [publisher.standing or Standing(ALIAS, "no prompt's first block was told yet") for publisher in telling]
        least = next((standing for standing in words if standing.word != EXACT), words[0])
        return Standing(least.word, least.reason, gaps[0] if gaps else "")

    def _why(self) -> str:
        """Why there are no events to go by."""
        if not self.feeds:
            return self.trouble or self.reason
        if self.trouble and self.feeds[0].link != CONNECTED and time.monotonic() - self.since_s < _BETTERS_S:
            return self.trouble
        found = silence(self.feeds[0])
        return f"takes prompts and publishes no KV events; {REMEDY}" if self.mute and found == UNHEARD else found

    def state(self) -> KvState:
        publishers = [feed.publisher for feed in self.feeds]
        return KvState(
            self.name,
            self.standing(),
            self.looked and all(feed.caught_up or feed.link == REFUSED for feed in self.feeds),
            min((kept for feed in self.feeds if (kept := feed.source.buffer_batches) is not None), default=None),
            sum((publisher.heard for publisher in publishers), self.batches),
            max((pace for publisher in publishers if (pace := publisher.pace.per_s) is not None), default=None),
            dict(sum((publisher.blocks.counts for publisher in publishers), self.blocks)),
            dict(sum((publisher.faults for publisher in publishers), self.faults)),
            self.endpoints,
        )

    def parted(self) -> None:
        """Keep the counts of the feeds, and drop them."""
        now = self.state()
        self.batches, self.blocks, self.faults = now.batches, Counter(now.blocks), Counter(now.faults)
        self.feeds = []
        self.mute, self.mute_since_s = False, None

    def say(self) -> None:
        """One line when the standing changes; of gaps that come and go, one in a while."""
        now, said = self.standing(), self.said
        now_s = time.monotonic()
        same = said is not None and (said.word, said.reason) == (now.word, now.reason)
        if (now == said and not self.mute) or (same and now_s - self.said_s < _QUIET_S):
            return
        self.said, self.said_s = now, now_s
        level = logging.WARNING if now.degraded else logging.INFO
        told = f"{now.reason}; degraded: {now.degraded}" if now.degraded else now.reason
        _log.log(level, "%s: cache known %s: %s", self, now.word, told)


def silence(feed: Feed) -> str:
    """Why nothing can be used that comes from a publisher."""
    where, faults = feed.source.endpoint, feed.publisher.faults
    if feed.link == REFUSED:
        return f"has something else than a ZMQ publisher at {where}; correct kv_events"
    if feed.publisher.heard and not _tells(feed):
        return f"has KV events at {where} that told no block which can be used"
    if faults["foreign"]:
        return f"sends messages at {where} that are no KV events"
    if faults["disconnected"] >= _BREAKS:
        most = MOST_MESSAGE_BYTES >> 20
        return f"has KV events at {where}, whose connection breaks each time (no message over {most} MiB is taken)"
    if feed.link == CONNECTING:
        begins = feed.unreachable_s < _CONNECTS_S and not faults["disconnected"]
        reached = "not connected yet" if begins else "which can't be reached"
        return f"has KV events at {where}, {reached}"
    return UNHEARD


def _tells(feed: Feed) -> bool:
    return feed.publisher.blocks.counts["stored"] > 0
