"""A trace of what was asked, for the simulator, without a word of it: `router serve --record FILE`.

    head    {"schema": "prefix-router.trace", "version": 1, "block_tokens", "started_s"}, one each time recording begins
    row     t (s since the head), route, model, tenant, session, prompt_tokens, output_tokens, status, outcome, replica,
            reason, ttft_s, e2e_s, available_tokens, predicted_tokens, delivered_tokens, after, ids

Block ids, tenants and sessions are keyed BLAKE2b under a salt that is drawn at each start and never written: they can't
be led back to tokens or names, nor joined between two recordings. `ids` are base64, 8 bytes a block; `after: [place,
blocks]` says that the prompt begins as that row of this head does. The one rule: recording never delays or fails a
request; a full or broken file ends the recording. Not here: reading (`sim.traces.recorded`).
"""

import asyncio
import logging
import os
import secrets
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import blake2b
from typing import BinaryIO, NamedTuple

import orjson

from policies.types import Request
from router.outcome import Outcome

_log = logging.getLogger("router.record")

SCHEMA = "prefix-router.trace"
VERSION = 1

_HOLD_S = 0.25
_MOST_WAITING = 20_000
_MARK_EVERY = 32
_LOOKED_BACK_BLOCKS = 512
_MOST_MARKS = 65_536
_MOST_ALIASES = 4096


class Answered(NamedTuple):
    """One finished request."""

    at_s: float
    request: Request
    outcome: Outcome


class Lines:
    """Turns finished requests into lines; remembers some blocks of earlier ones, so that only new ones are written."""

    def __init__(self, salt: bytes) -> None:
        self._block = blake2b(key=salt, digest_size=8, person=b"block")
        self._name = blake2b(key=salt, digest_size=6, person=b"name")
        self._alias = lru_cache(_MOST_ALIASES)(self._made_alias)
        self._marks: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._place = 0

    def row(self, answered: Answered) -> bytes:
        at_s, request, outcome = answered
        kept = self._kept(request.blocks)
        told = {
            "t": round(at_s, 6),
            "route": request.route,
            "model": request.model,
            "tenant": self.alias(request.tenant),
            "session": self.alias(request.session),
            "prompt_tokens": outcome.prompt_tokens,
            "output_tokens": outcome.output_tokens,
            "status": outcome.status,
            "outcome": outcome.outcome,
            "replica": outcome.replica,
            "reason": outcome.reason,
            "ttft_s": None if outcome.ttft_s is None else round(outcome.ttft_s, 6),
            "e2e_s": round(outcome.duration_s, 6),
            "available_tokens": outcome.available_tokens,
            "predicted_tokens": outcome.predicted_tokens,
            "delivered_tokens": outcome.delivered_tokens,
            "after": kept,
            "ids": self._ids(request.blocks[kept[1] if kept else 0 :]),
        }
        self._remember(request.blocks, kept[1] if kept else 0)
        self._place += 1
        return orjson.dumps({name: value for name, value in told.items() if value is not None}) + b"\n"

    def alias(self, name: str | None) -> str | None:
        """A name that stands for `name` in this recording only."""
        return self._alias(name) if name else None

    def _made_alias(self, name: str) -> str:
        digest = self._name.copy()
        digest.update(name.encode("utf-8", "surrogatepass"))
        return b64encode(digest.digest(), b"-_").decode()

    def _ids(self, blocks: Iterable[bytes]) -> str | None:
        copy = self._block.copy
        ids = []
        for block in blocks:
            digest = copy()
            digest.update(block)
            ids.append(digest.digest())
        return b64encode(b"".join(ids)).decode() if ids else None

    def _kept(self, blocks: Sequence[bytes]) -> tuple[int, int] | None:
        """An earlier row and how many blocks this prompt has in common with it: keys are chained, so one proves all."""
        marks, count = self._marks, len(blocks)
        near = range(count, max(0, count - _LOOKED_BACK_BLOCKS), -1)
        far = range(near.stop // _MARK_EVERY * _MARK_EVERY, 0, -_MARK_EVERY)
        for places in (near, far):
            for place in places:
                if found := marks.get(blocks[place - 1]):
                    return found
        return None

    def _remember(self, blocks: Sequence[bytes], kept: int) -> None:
        marks = self._marks
        for place in range(kept // _MARK_EVERY * _MARK_EVERY + _MARK_EVERY, len(blocks) + 1, _MARK_EVERY):
            marks[blocks[place - 1]] = (self._place, place)
        if blocks:
            marks[blocks[-1]] = (self._place, len(blocks))
        while len(marks) > _MOST_MARKS:
            marks.popitem(last=False)


class Recorder:
    """Appends to one file from a thread of its own; what waits and what is written are both bounded."""

    def __init__(
        self, path: str, block_tokens: int, *, max_bytes: int, clock: Callable[[], float], salt: bytes | None = None
    ) -> None:
        """Opens `path` for appending, readable by its owner only. Raises `OSError`."""
        self.lost = 0
        """Requests that were not recorded because too many waited to be written."""
        self._file: BinaryIO | None = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        self._path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._began_s = clock()
        self._lines = Lines(secrets.token_bytes(32) if salt is None else salt)
        self._waiting: list[Answered] = []
        self._handed_over = self._written_off = 0
        """Requests given to the writer, counted on the loop; and those it is done with, counted by itself."""
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record")
        head = {"schema": SCHEMA, "version": VERSION, "block_tokens": block_tokens, "started_s": time.time()}
        self._append([(b"\n" if _cut_off(self._file) else b"") + orjson.dumps(head) + b"\n"])

    def answered(self, request: Request, outcome: Outcome, began_s: float) -> None:
        """A request ended that came at `began_s` on the clock. Called on the event loop; returns at once."""
        if self._handed_over - self._written_off + len(self._waiting) >= _MOST_WAITING:
            self.lost += 1
            return
        if not self._waiting:
            asyncio.get_running_loop().call_later(_HOLD_S, self._hand_over)
        self._waiting.append(Answered(began_s - self._began_s, request, outcome))

    def close(self) -> None:
        """Write what waits and close the file."""
        self._hand_over()
        self._writer.shutdown()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.lost:
            _log.warning("%d requests were not recorded: the disk was too slow", self.lost)

    def _hand_over(self) -> None:
        batch, self._waiting = self._waiting, []
        if batch:
            self._handed_over += len(batch)
            self._writer.submit(self._written, batch)

    def _written(self, batch: list[Answered]) -> None:
        if self._file is not None:
            self._append(map(self._lines.row, batch))
        self._written_off += len(batch)

    def _append(self, lines: Iterable[bytes]) -> None:
        file = self._file
        assert file is not None  # noqa: S101 -- the callers looked
        try:
            for line in lines:
                if file.tell() + len(line) > self._max_bytes:
                    self._end("%s has reached record.max_bytes (%d); recording ends", self._path, self._max_bytes)
                    return
                file.write(line)
            file.flush()
        except OSError as error:
            self._end("%s can't be written: %s; recording ends", self._path, error.strerror or error)

    def _end(self, message: str, *values: object) -> None:
        _log.warning(message, *values)
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                _log.debug("closing %s failed too", self._path)


def _cut_off(file: BinaryIO) -> bool:
    """Whether the file ends in the middle of a line: its writer was killed."""
    end = file.seek(0, os.SEEK_END)
    return bool(end) and os.pread(file.fileno(), 1, end - 1) != b"\n"
