"""The router's own recording: who asked for how much of what, and how it went, without a word of text.

    head    {"schema": "prefix-router.trace", "version": 1, "block_tokens", "started_s"}; another one after a restart
    row     t (s since the head), route, model, tenant, session, prompt_tokens, output_tokens, status, replica, reason,
            ttft_s, e2e_s, predicted_tokens, delivered_tokens, after: [place, blocks], ids: text

`ids` are 8 salted bytes a block in base64; `after` says that the prompt begins with the first `blocks` blocks of the
row at `place` since the head, counted from 0. The one rule: ids of different heads are different, as their salts are.
Not here: writing (`router.record`).
"""

import base64
import binascii
from collections.abc import Iterable

import numpy as np

from sim.traces.format import Format, Reading
from sim.traces.rows import (
    BadRow,
    Item,
    LeftOut,
    Row,
    listed,
    name_of,
    seconds,
    seconds_or_none,
    tokens,
    tokens_or_none,
)
from sim.traces.runs import Runs, count_of, cut, merged

SCHEMA = "prefix-router.trace"
VERSION = 1
_GENERATING = ("/completions", "/responses", "/messages")


class Recorded:
    """Rows after their head; ids become numbers in the order in which they were first seen."""

    def __init__(self, reading: Reading) -> None:
        self._block_tokens = reading.block_tokens
        self._started_s: float | None = None
        self._heads = 0
        self._numbers: dict[int, int] = {}
        self._prompts: list[Runs | None] = []

    def __call__(self, item: Item) -> Iterable[Row]:
        if item.get("schema") == SCHEMA:
            self._begin(item)
            return
        if self._started_s is None:
            raise BadRow("a row before the head of a recording")
        self._prompts.append(None)
        runs = self._runs(item)
        self._prompts[-1] = runs
        status = tokens(item, "status")
        if status != 200:
            raise LeftOut("a request that failed")
        prompt = tokens(item, "prompt_tokens")
        if not prompt:
            raise LeftOut("the prompt is empty")
        yield Row(
            time_s=self._started_s + seconds(item, "t"),
            prompt_tokens=prompt,
            output_tokens=_answer(item),
            runs=cut(runs, prompt // (self._block_tokens or 1)) or None,
            scope=str(self._heads),
            block_tokens=self._block_tokens,
            session=name_of(item, "session"),
            tenant=name_of(item, "tenant") or "",
            route=name_of(item, "route") or "",
            model=name_of(item, "model") or "",
            took_s=seconds_or_none(item, "e2e_s"),
            ttft_s=seconds_or_none(item, "ttft_s"),
            cached_tokens=tokens_or_none(item, "delivered_tokens"),
        )

    def _begin(self, item: Item) -> None:
        if item.get("version") != VERSION:
            raise BadRow("a recording of another version", f"{item.get('version')!r}, this reads {VERSION}")
        self._block_tokens = tokens(item, "block_tokens")
        self._started_s = seconds(item, "started_s")
        self._heads += 1
        self._numbers = {}
        self._prompts = []

    def _runs(self, item: Item) -> Runs:
        kept: Runs = ()
        if item.get("after") is not None:
            told = listed(item, "after")
            if len(told) != 2 or not all(type(value) is int and value >= 0 for value in told):
                raise BadRow("after is no [place, blocks]")
            place, blocks = told
            earlier = self._prompts[place] if place < len(self._prompts) else None
            if earlier is None or count_of(earlier) < blocks:
                raise BadRow("after refers to a row that is not there")
            kept = cut(earlier, blocks)
        numbers = self._numbers
        fresh = [numbers.setdefault(word, len(numbers)) for word in _words(item.get("ids", ""))]
        return merged([*kept, *((number, number) for number in fresh)])


def _answer(item: Item) -> int | None:
    """Answers that nobody counted are unknown; routes that generate nothing have one of no length."""
    told = tokens_or_none(item, "output_tokens")
    return told if told is not None or str(item.get("route")).endswith(_GENERATING) else 0


def _words(told: object) -> list[int]:
    try:
        data = base64.b64decode(told, validate=True) if isinstance(told, str) else b"?"
        return list(map(int, np.frombuffer(data, "<u8")))
    except (binascii.Error, ValueError):
        raise BadRow("ids are no base64 of 8 bytes each") from None


FORMATS = (Format("router", lambda item: item.get("schema") == SCHEMA, Recorded),)
