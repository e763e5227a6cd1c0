"""Runs of an engine's blocks: for each of its hashes, the router's own keys, and the state to continue from.

A run holds at most 256 consecutive blocks, their tokens, their copies and the digest's state before the first one: a
branch anywhere costs at most 256 blocks of hashing, and a block takes about 200 bytes. The one rule: a block is placed
behind a parent that is here, or at the start of a prompt. Not here: where the facts come from, and what waits.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from policies.blocks import Chain
from policies.copies import SHARD_OF, SHARDS

RUN_BLOCKS: Final = 256
_CUT_BLOCKS: Final = 32
_OPEN_RUNS: Final = 4096  # runs whose end state is kept, 500 bytes each


Adapter = tuple[str, int | None]
"""Name of a LoRA adapter, and the engine's number of it since it was loaded last."""
NO_ADAPTER: Final[Adapter] = ("", None)


class Piece(NamedTuple):
    """Consecutive blocks of one prompt, as an engine told them."""

    hashes: Sequence[int]
    parent: int | None
    """The engine's hash of the block before; None at the start of a prompt."""
    root: Chain | None
    """What a prompt's first block continues; needed only without a parent."""
    tokens: bytes
    """Packed ids (`policies.blocks.packed`), the same number for each block."""
    adapter: Adapter = NO_ADAPTER


class Placed(NamedTuple):
    """What the fleet is to be told of a piece."""

    keys: list[bytes]
    """Own keys that are complete now, in order."""
    before: bytes | None
    """The own key that the first of them continues."""
    blocks: int
    """Leading engine blocks that were taken; fewer than the piece has when one contradicts what is known."""


class Run:
    """Consecutive blocks of one prompt."""

    __slots__ = ("adapter", "before", "copies", "end", "keys", "number", "present", "start", "tokens")

    def __init__(self, number: int, start: Chain, before: bytes | None, adapter: Adapter) -> None:
        self.number = number
        self.adapter = adapter
        self.start = start
        self.end: Chain | None = None
        self.before = before
        """The own key before the first block; None at the start of a prompt."""
        self.tokens = bytearray()
        self.keys: list[bytes | None] = []
        """`slots` of them per block; None for a block that fills none of the fleet's."""
        self.copies: list[int] = []
        self.present = 0


class Runs:
    """All runs of one engine."""

    def __init__(self, block_tokens: int, engine_block_tokens: int) -> None:
        """One of the two sizes must divide the other."""
        self._block_tokens = block_tokens
        self._slots = max(1, engine_block_tokens // block_tokens)
        self._per_key = max(1, block_tokens // engine_block_tokens)
        self._engine_block_tokens = engine_block_tokens
        self.plain = block_tokens == engine_block_tokens
        """Whether each block of the engine is one of the fleet's."""
        self._where: tuple[dict[int, int], ...] = tuple({} for _ in range(SHARDS))
        """Number of the run and place in it, packed, by engine hash; in the order they were stored."""
        self._blocks = 0
        self._runs: dict[int, Run] = {}
        self._open: OrderedDict[Run, None] = OrderedDict()
        self._number = 0
        self.copies = 0

    def __len__(self) -> int:
        return self._blocks

    def __contains__(self, found: int) -> bool:
        return found in self._where[SHARD_OF[found & 255]]

    def __repr__(self) -> str:
        return f"<Runs {len(self)} blocks in {len(self._runs)} runs>"

    # -- storing ---------------------------------------------------------------------------------------------------

    def place(self, piece: Piece) -> Placed:
        """Every block of the piece gets one copy more. Its parent must be here."""
        where = self._where
        keys: list[bytes | None] = []
        width = len(piece.tokens) // len(piece.hashes)
        before, at, total = piece.parent, 0, len(piece.hashes)
        first_before = None if before is None else self._last_key(where[SHARD_OF[before & 255]][before])
        while at < total:
            found = piece.hashes[at]
            number = where[SHARD_OF[found & 255]].get(found)
            if number is None:
                end = at + 1
                while end < total and piece.hashes[end] not in where[SHARD_OF[piece.hashes[end] & 255]]:
                    end += 1
                keys += self._grown(piece, at, end, before, width)
                at = end
            else:
                run, index = self._runs[number >> 8], number & 255
                if run.tokens[index * width : (index + 1) * width] != piece.tokens[at * width : (at + 1) * width]:
                    break
                run.copies[index] += 1
                self.copies += 1
                keys += run.keys[index * self._slots : (index + 1) * self._slots]
                at += 1
            before = piece.hashes[at - 1]
        return Placed([key for key in keys if key is not None], first_before, at)

    def continued(self, found: int, parent: int, data: bytes) -> tuple[bytes, bytes] | None:
        """Place one new block behind the end of a run that has room: its own key, and the one before it.

        None, and nothing is placed, when that is not how it is. Only where blocks are `plain`.
        """
        where = self._where
        number = where[SHARD_OF[parent & 255]].get(parent)
        if number is None:
            return None
        run = self._runs[number >> 8]
        index = number & 255
        chain, keys = run.end, run.keys
        before = keys[index]
        if chain is None or before is None or index != len(keys) - 1 or index == RUN_BLOCKS - 1:
            return None
        if where[SHARD_OF[found & 255]].setdefault(found, number + 1) != number + 1:
            return None
        key = chain.next_key(data)
        run.tokens += data
        keys.append(key)
        run.copies.append(1)
        run.present += 1
        self.copies += 1
        self._blocks += 1
        return key, before

    def _grown(self, piece: Piece, at: int, end: int, before: int | None, width: int) -> list[bytes | None]:
        """Blocks `at` to `end` are new: put them behind `before`, in its run while there is room."""
        found: list[bytes | None] = []
        while at < end:
            run = self._run_behind(before, piece)
            room = min(end - at, RUN_BLOCKS - len(run.copies))
            data = piece.tokens[at * width : (at + room) * width]
            chain = run.end
            assert chain is not None, "a run is opened before it grows"  # noqa: S101
            keys = self._keys(chain, data, room)
            number = run.number << 8 | len(run.copies)
            for engine_hash in piece.hashes[at : at + room]:
                self._where[SHARD_OF[engine_hash & 255]][engine_hash] = number
                number += 1
            self._blocks += room
            run.tokens += data
            run.keys += keys
            run.copies.extend([1] * room)
            run.present += room
            self.copies += room
            found += keys
            at += room
            before = piece.hashes[at - 1]
        return found

    def _keys(self, chain: Chain, data: bytes, blocks: int) -> list[bytes | None]:
        filled = chain.tail_tokens
        keys: list[bytes | None] = list(chain.grow(data, self._block_tokens))
        if len(keys) == blocks * self._slots:
            return keys
        # The fleet's blocks are larger: the one that fills such a block stands for it.
        done, completed = filled // self._engine_block_tokens, iter(keys)
        return [next(completed) if (done + at + 1) % self._per_key == 0 else None for at in range(blocks)]

    def _run_behind(self, before: int | None, piece: Piece) -> Run:
        """The run that ends with `before` if it has room, else a new one; its end state at hand."""
        if before is None:
            if piece.root is None:
                raise ValueError("a piece without a parent needs a root")
            return self._new_run(piece.root.copy(), None, piece.adapter)
        number = self._where[SHARD_OF[before & 255]][before]
        run, index = self._runs[number >> 8], number & 255
        if index < len(run.copies) - 1:
            width = len(run.tokens) // len(run.copies)
            chain = run.start.copy()
            chain.grow(bytes(run.tokens[: (index + 1) * width]), self._block_tokens)
            return self._new_run(chain, self._last_key(number), piece.adapter)
        end = self._opened(run)
        if len(run.copies) < RUN_BLOCKS:
            return run
        return self._new_run(end.copy(), self._last_key(number), piece.adapter)

    def _new_run(self, start: Chain, before: bytes | None, adapter: Adapter) -> Run:
        self._number += 1
        run = self._runs[self._number] = Run(self._number, start, before, adapter)
        run.end = start.copy()
        self._kept_open(run)
        return run

    def _opened(self, run: Run) -> Chain:
        if run.end is None:
            run.end = run.start.copy()
            run.end.grow(bytes(run.tokens), self._block_tokens)
        self._kept_open(run)
        return run.end

    def _kept_open(self, run: Run) -> None:
        self._open[run] = None
        self._open.move_to_end(run)
        if len(self._open) > _OPEN_RUNS:
            self._open.popitem(last=False)[0].end = None

    def _last_key(self, number: int) -> bytes | None:
        """The last own key that is complete with this block."""
        run, index = self._runs[number >> 8], number & 255
        for at in range((index + 1) * self._slots - 1, -1, -1):
            key = run.keys[at]
            if key is not None:
                return key
        return run.before

    # -- giving up -------------------------------------------------------------------------------------------------

    def removed(self, hashes: Sequence[int], keys: list[bytes]) -> list[int]:
        """One copy of each block is gone: add to `keys` what the fleet is to be told, and return those not here."""
        unknown = []
        for found in hashes:
            number = self._where[SHARD_OF[found & 255]].get(found)
            if number is None:
                unknown.append(found)
                continue
            run, index = self._runs[number >> 8], number & 255
            keys += self._keys_at(run, index)
            self._one_less(found, run, index)
        return unknown

    def removed_one(self, found: int) -> bytes | None:
        """One copy of a block is gone: its own key; None when the block is not here. Only where blocks are `plain`."""
        number = self._where[SHARD_OF[found & 255]].get(found)
        if number is None:
            return None
        run = self._runs[number >> 8]
        index = number & 255
        key = run.keys[index]
        self._one_less(found, run, index)
        return key

    def oldest_removed(self, blocks: int) -> list[bytes]:
        """Give up about so many of the blocks that were stored first, all copies; the keys to tell the fleet."""
        keys: list[bytes] = []
        for shard in self._where:
            for found in list(islice(shard, 1 + blocks // SHARDS)):
                number = shard[found]
                self.removed([found] * self._runs[number >> 8].copies[number & 255], keys)
        return keys

    def further_copies_removed(self) -> list[bytes]:
        """Leave one copy of each block; the keys to tell the fleet."""
        keys: list[bytes] = []
        for shard in self._where:
            for found, number in shard.items():
                copies = self._runs[number >> 8].copies[number & 255]
                if copies > 1:
                    self.removed([found] * (copies - 1), keys)
        return keys

    def adapter_removed(self, adapter: str) -> Iterator[list[bytes]]:
        """Give up an adapter's blocks, those of its newest number only if there are no others; keys, in parts."""
        numbers = [run.adapter[1] for run in self._runs.values() if run.adapter[0] == adapter]  # the newest run's last
        gone = set(numbers) - set(numbers[-1:]) or set(numbers)
        for shard in self._where:
            keys: list[bytes] = []
            for found, number in list(shard.items()):
                run = self._runs[number >> 8]
                if run.adapter[0] == adapter and run.adapter[1] in gone:
                    self.removed([found] * run.copies[number & 255], keys)
            yield keys

    def _keys_at(self, run: Run, index: int) -> list[bytes]:
        return [key for key in run.keys[index * self._slots : (index + 1) * self._slots] if key is not None]

    def _one_less(self, found: int, run: Run, index: int) -> None:
        """A copy of a block is gone; with the last copy goes the block, with a run's last block the run."""
        self.copies -= 1
        left = run.copies[index] - 1
        run.copies[index] = left
        if left:
            return
        del self._where[SHARD_OF[found & 255]][found]
        self._blocks -= 1
        run.present -= 1
        if not run.present:
            del self._runs[run.number]
            self._open.pop(run, None)
        elif (len(run.copies) - run.present) % _CUT_BLOCKS == 0:
            self._cut(run)

    def _cut(self, run: Run) -> None:
        """Take blocks that are gone off the end of a run."""
        width = len(run.tokens) // len(run.copies)
        left = len(run.copies)
        while not run.copies[left - 1]:
            left -= 1
        if left < len(run.copies):
            del run.copies[left:], run.keys[left * self._slots :], run.tokens[left * width :]
            run.end = None
            self._open.pop(run, None)
