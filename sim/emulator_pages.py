"""What an emulated engine's cache events say on the wire: vLLM 0.32's KV events, with its hashes and token ids.

    hash    vLLM's default, `sha256` from its fixed seed (`policies.engine_hashes`)
    event   a msgpack map with its kind under `type`; a batch is an array [time, events, data-parallel rank]

The one rule: a page is known as long as a live job or a copy in the cache has it, so memory is bounded by the engine.
Sockets are in `emulator_events`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from policies.engine_hashes import FIXED_SEED, ExtraKeys, block_hash, extra_keys_of, root_hash, short
from sim.cache_events import Event, Removed, Stored

ALGORITHM = "sha256"

_MEDIUM = "GPU"


class BlockStored(msgspec.Struct, tag_field="type", tag="BlockStored"):
    """Blocks became hittable, in chain order; one entry of `extra_keys` for each."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str] | None]
    group_idx: int
    kv_cache_spec_kind: str


class BlockRemoved(msgspec.Struct, tag_field="type", tag="BlockRemoved"):
    """One copy of each of these blocks is gone."""

    block_hashes: list[int]
    medium: str
    group_idx: int


class AllBlocksCleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared"):
    """The whole cache is gone."""


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True):
    """The events of one step; `ts` is Unix time in seconds."""

    ts: float
    events: list[WireEvent]
    data_parallel_rank: int


@dataclass(frozen=True, slots=True)
class Origin:
    """What tells chains of equal tokens apart. `adapter_number` counts loaded adapters from 1."""

    adapter: str = ""
    adapter_number: int | None = None
    adapter_path: str = ""
    salt: str = ""

    def hashed(self, block: int) -> ExtraKeys:
        """The extra keys that go into the hash of one block."""
        return self._extra_keys(block, tagged=True)

    def shown(self, block: int) -> list[str] | None:
        """The same in an event: without tags and path."""
        return list(self._extra_keys(block, tagged=False) or ()) or None

    def _extra_keys(self, block: int, *, tagged: bool) -> ExtraKeys:
        salt = "" if block else self.salt
        return extra_keys_of(adapter=self.adapter, adapter_path=self.adapter_path, salt=salt, tagged=tagged)


class _Page:
    """One block: its tokens and its place in a chain, and who still needs to know them."""

    __slots__ = ("block", "copies", "hash", "jobs", "origin", "tokens")

    def __init__(self, block: int, tokens: Sequence[int], origin: Origin) -> None:
        self.block = block
        self.tokens = tuple(tokens)
        self.origin = origin
        self.hash = b""
        self.jobs = 0
        self.copies = 0


class Pages:
    """Every block of live jobs and of the cache, by the key that the simulator's cache knows it under."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._pages: dict[bytes, _Page] = {}
        self._root = root_hash(ALGORITHM, FIXED_SEED)

    def __len__(self) -> int:
        return len(self._pages)

    def opened(self, keys: Sequence[bytes], tokens: Sequence[int], origin: Origin) -> None:
        """A job may store these blocks; `tokens` are those of prompt and answer."""
        size = self._block_tokens
        for block, key in enumerate(keys):
            page = self._pages.get(key)
            if page is None:
                page = self._pages[key] = _Page(block, tokens[block * size : (block + 1) * size], origin)
            page.jobs += 1

    def closed(self, keys: Sequence[bytes]) -> None:
        """The job is over, and all that it stored has been told."""
        for key in keys:
            page = self._pages[key]
            page.jobs -= 1
            if not page.jobs and not page.copies:
                del self._pages[key]

    def told(self, events: Sequence[Event]) -> list[WireEvent]:
        """The cache's events as the engine would publish them."""
        return [self._told(event) for event in events]

    def _told(self, event: Event) -> WireEvent:
        if isinstance(event, Stored):
            return self._stored(event)
        if isinstance(event, Removed):
            return self._removed(event)
        for page in self._pages.values():
            page.copies = 0
        self._pages = {key: page for key, page in self._pages.items() if page.jobs}
        return AllBlocksCleared()

    def _stored(self, event: Stored) -> BlockStored:
        parent = None if event.parent is None else self._pages[event.parent].hash
        before, pages = parent or self._root, [self._pages[key] for key in event.keys]
        for page in pages:
            page.copies += 1
            page.hash = page.hash or block_hash(ALGORITHM, before, page.tokens, page.origin.hashed(page.block))
            before = page.hash
        origin = pages[0].origin
        return BlockStored(
            block_hashes=[short(page.hash) for page in pages],
            parent_block_hash=None if parent is None else short(parent),
            token_ids=[token for page in pages for token in page.tokens],
            block_size=self._block_tokens,
            lora_id=origin.adapter_number,
            medium=_MEDIUM,
            lora_name=origin.adapter or None,
            extra_keys=[page.origin.shown(page.block) for page in pages],
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )

    def _removed(self, event: Removed) -> BlockRemoved:
        page = self._pages[event.key]
        page.copies -= 1
        if not page.jobs and not page.copies:
            del self._pages[event.key]
        return BlockRemoved([short(page.hash)], _MEDIUM, 0)
