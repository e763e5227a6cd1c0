"""What one engine holds: its events turned into the router's own keys and told to the fleet.

The keys are chained from the tokens the events tell; the engine's hashes only name blocks, and need not equal ours. The
one rule: nothing is guessed. A block whose parent was never told waits aside; one that holds more than tokens (images,
embeddings), and all that continues it, is known to exist and has no key. Not here: the order of events (`kv_sequence`).
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from policies.blocks import Chain
from policies.copies import Copies
from router.kv_aside import Aside
from router.kv_runs import NO_ADAPTER, Piece, Runs
from router.kv_shapes import WireRemoved, WireStored
from router.kv_wire import Removed, Stored

PIECE_BLOCKS: Final = 256
"""Blocks taken at once, under a millisecond's work."""
MOST_BLOCKS: Final = 1_000_000
"""Blocks remembered of an engine that does not tell its size."""
_ASIDE_BLOCKS = 65_536
_NO_EXTRA: Final = [None]
_FULL_ATTENTION: Final = frozenset((None, "full_attention", "mla_attention", "sink_full_attention"))
"""Kinds of attention in which a prompt's prefix is read; an engine of one kind may tell none."""

COUNTED: Final = (
    "stored",
    "removed",
    "removed_unknown",
    "orphan",
    "without_key",
    "other_cache",
    "contradicting",
    "bad_tokens",
    "pruned",
    "reloaded",
)
"""What may become of a block that an event names; a closed set."""


class BlockSizeError(Exception):
    """Blocks of a size that can't be told in the fleet's blocks; the text completes `replica r1 …`."""


class EngineBlocks:
    """The blocks of one engine (a data-parallel rank)."""

    def __init__(
        self,
        *,
        block_tokens: int,
        root: Callable[[str, str], Chain],
        stored: Callable[[list[bytes], bytes | None], None],
        removed: Callable[[list[bytes]], None],
        told: Callable[[], Copies],
    ) -> None:
        """All but `root` are the fleet's; that gives an adapter's and a salt's chain."""
        self.limit_blocks = MOST_BLOCKS
        """More than this the engine can't hold: what was told first is given up."""
        self.counts: Counter[str] = Counter()
        """Blocks by what became of them (`COUNTED`), since the start."""
        self.engine_block_tokens: int | None = None
        self._block_tokens = block_tokens
        self._root = root
        self._tell_stored = stored
        self._tell_removed = removed
        self._told = told
        self._group: int | None = None
        self._runs = Runs(1, 1)
        self._without_key: Counter[int] = Counter()
        self._aside = Aside(_ASIDE_BLOCKS)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<EngineBlocks {self._runs!r}, {len(self._aside)} aside>"

    # -- facts -----------------------------------------------------------------------------------------------------

    def stored(self, event: Stored) -> Iterator[None]:
        """Take the event a piece at a time. Raises `BlockSizeError`."""
        total = len(event.hashes)
        if not self._counts_here(event.medium, event.group, event.kind):
            self.counts["other_cache"] += total
            return
        if len({*event.hashes, event.parent}) <= total:
            self.counts["contradicting"] += total
            return
        self._sized(event.block_tokens)
        readable, salt = _readable(event)
        parent, root = event.parent, None
        adapter = (event.adapter, event.adapter_number) if event.adapter else NO_ADAPTER
        if parent is None:
            root = self._root(event.adapter or "", salt)
        size = event.block_tokens
        for start in range(0, readable, PIECE_BLOCKS):
            end = min(readable, start + PIECE_BLOCKS)
            try:
                tokens = _packer((end - start) * size)(*event.tokens[start * size : end * size])
            except struct.error:
                self.counts["bad_tokens"] += total - start
                return
            coming, gone = [Piece(event.hashes[start:end], parent, root, tokens, adapter)], list[int]()
            while coming:
                coming += self._take(coming.pop(), gone)
                if coming:
                    yield
            if gone:
                self.removed(Removed(gone, "GPU", None))
            parent = event.hashes[end - 1]
            if end < readable:
                yield
        if readable < total:
            self._keyless(event.hashes[readable:])
        while max(len(self._runs), self._runs.copies, len(self._without_key)) > self.limit_blocks:
            self._prune()
            yield

    def straight(self, items: list[Any], at: int) -> int:
        """Take items from place `at` on while each is of the most frequent kind; the place of the first that is not.

        That is one block that continues the newest one of its run, or one copy less of a block that is known.
        """
        runs, size = self._runs, self.engine_block_tokens
        if not runs or not runs.plain or size is None:  # who has told no block with a key is not telling yet
            return at
        told, pack, group, limit = self._told(), _packer(size), self._group, self.limit_blocks
        awaited = self._aside.awaited if self._aside else ()
        begun, end, removed = at, len(items), 0
        while at < end:
            item = items[at]
            if type(item) is WireRemoved:
                hashes: list[int] = item.block_hashes
                if len(hashes) != 1 or item.medium != "GPU" or item.group_idx != group:
                    break
                key = runs.removed_one(hashes[0])
                if key is None:
                    break
                told.removed_one(key)
                removed += 1
            elif type(item) is WireStored:
                hashes = item.block_hashes
                parent, extra = item.parent_block_hash, item.extra_keys
                if (
                    len(hashes) != 1
                    or parent is None
                    or item.block_size != size
                    or item.group_idx != group
                    or item.medium != "GPU"
                    or item.lora_id is not None
                    or item.lora_name is not None
                    or not (extra is None or extra == _NO_EXTRA)
                    or item.kv_cache_spec_kind not in _FULL_ATTENTION
                    or hashes[0] in awaited
                    or runs.copies >= limit
                ):
                    break
                try:
                    data = pack(*item.token_ids)
                except struct.error:  # not so many ids as a block has, or no ids
                    break
                placed = runs.continued(hashes[0], parent, data)
                if placed is None:
                    break
                key, before = placed
                told.stored_one(key, before)
            else:
                break
            at += 1
        self.counts["removed"] += removed
        self.counts["stored"] += at - begun - removed
        return at

    def removed(self, event: Removed) -> None:
        if event.medium != "GPU" or None is not event.group != self._group is not None:
            self.counts["other_cache"] += len(event.hashes)
            return
        keys: list[bytes] = []
        for found in self._runs.removed(event.hashes, keys):
            if found in self._without_key:
                self._without_key[found] -= 1
                if not self._without_key[found]:
                    del self._without_key[found]
            elif not self._aside.removed(found):
                self.counts["removed_unknown"] += 1
        self.counts["removed"] += len(event.hashes)
        if keys:
            self._tell_removed(keys)

    def forgotten(self) -> Iterator[None]:
        """Give up everything, telling the fleet a piece at a time."""
        while self._runs:
            self._tell_removed(self._runs.oldest_removed(PIECE_BLOCKS))
            yield
        self.cleared()

    def reloaded(self, adapter: str) -> Iterator[None]:
        """An adapter was loaded from elsewhere under the name it had: what was computed with it can't be hit again.

        vLLM makes the path a part of each block's hash (from 0.31), and evicts these blocks as they grow old. Where the
        engine numbers the adapter anew, what it told under the new number stays.
        """
        for keys in self._runs.adapter_removed(adapter):
            self.counts["reloaded"] += len(keys)
            if keys:
                self._tell_removed(keys)
            yield

    def cleared(self) -> None:
        """Everything is gone, and the fleet knows."""
        self._runs = Runs(1, 1)
        self._without_key.clear()
        self._aside = Aside(_ASIDE_BLOCKS)
        self._group = self.engine_block_tokens = None

    # -- what counts -----------------------------------------------------------------------------------------------

    def _counts_here(self, medium: str, group: int | None, kind: str | None) -> bool:
        """Whether an event is about blocks a prompt's prefix is read from: on the GPU, of the full-attention group."""
        if medium != "GPU" or kind not in _FULL_ATTENTION:
            return False
        if self._group is None:
            self._group = group
        return group is None or group == self._group

    def _sized(self, engine_block_tokens: int) -> None:
        if engine_block_tokens == self.engine_block_tokens:
            return
        if self.engine_block_tokens is not None:
            told = f"{engine_block_tokens} and of {self.engine_block_tokens}"
            raise BlockSizeError(f"stores blocks of {told} tokens; its events can't be followed")
        ours = self._block_tokens
        if engine_block_tokens % ours and ours % engine_block_tokens:
            raise BlockSizeError(
                f"stores blocks of {engine_block_tokens} tokens, which neither divides block_tokens = {ours} nor is a"
                f" multiple of it; run the router with --set block_tokens={engine_block_tokens}"
            )
        self.engine_block_tokens = engine_block_tokens
        self._runs = Runs(ours, engine_block_tokens)

    # -- storing ---------------------------------------------------------------------------------------------------

    def _take(self, piece: Piece, gone: list[int]) -> list[Piece]:
        """Store a piece; return what waited for its blocks, and add to `gone` what of that was removed meanwhile."""
        parent, counts = piece.parent, self.counts
        total = len(piece.hashes)
        if parent is None or parent in self._runs:
            placed = self._runs.place(piece)
            counts["stored"] += placed.blocks
            if placed.blocks < total:
                counts["contradicting"] += total - placed.blocks
            if placed.keys:
                self._tell_stored(placed.keys, placed.before)
            return self._aside.continuing(piece.hashes[: placed.blocks], gone) if self._aside else []
        if parent in self._without_key:
            self._keyless(piece.hashes)
        else:
            counts["orphan"] += total
            self._aside.add(piece)
        return []

    def _keyless(self, hashes: Sequence[int]) -> None:
        self._without_key.update(hashes)
        self.counts["without_key"] += len(hashes)

    def _prune(self) -> None:
        """More than the engine can hold was told: removals were missed, or hits were told as if they were stores."""
        excess = len(self._runs) - self.limit_blocks
        if len(self._without_key) > self.limit_blocks:
            self._without_key.clear()
            return
        if excess > 0:
            keys = self._runs.oldest_removed(min(excess + len(self._runs) // 64, PIECE_BLOCKS))
        else:
            keys = self._runs.further_copies_removed()
        self.counts["pruned"] += len(keys)
        self._tell_removed(keys)


@lru_cache(256)
def _packer(tokens: int) -> Callable[..., bytes]:
    """What packs so many ids as `policies.blocks.packed` does. Raises `struct.error`."""
    return struct.Struct(f"<{tokens}I").pack


def _readable(event: Stored) -> tuple[int, str]:
    """How many leading blocks hold nothing but tokens, adapter and salt; and the salt."""
    if event.adapter is None:
        return 0, ""
    if event.extra_keys is None or not any(event.extra_keys):
        return len(event.hashes), ""
    salt = ""
    for at, extra in enumerate(event.extra_keys):
        rest = _beyond_adapter(extra or [], event.adapter)
        if not rest:
            continue
        found = _salt(rest) if at == 0 and event.parent is None else None
        if found is None:
            return at, salt
        salt = found
    return len(event.hashes), salt


def _beyond_adapter(extra: Any, adapter: str) -> list[Any]:
    if not isinstance(extra, list):
        return [extra]
    if adapter and extra and (extra[0] == adapter or (isinstance(extra[0], list) and extra[0][:1] == ["lora"])):
        return extra[1:]
    return extra


def _salt(rest: list[Any]) -> str | None:
    """The salt, if these extra keys are one: a bare text, or tagged."""
    if len(rest) != 1:
        return None
    found = rest[0]
    if isinstance(found, list) and len(found) == 2 and found[0] == "cache_salt":
        found = found[1]
    return found if isinstance(found, str) else None
