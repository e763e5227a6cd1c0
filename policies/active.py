"""How many KV blocks a replica's unfinished prompts occupy, as far as one can know who only chooses.

    unfinished    the prompts last sent there, as many as are in flight: the first in are taken to be the first out
    blocks        different blocks of all of them together: a head that several share counts once

Dynamo's router counts exactly, for it is told when a request ends (`lib/kv-router/src/sequences`, 1.6.1). Sharing is
seen in spans of 32 blocks, for speed: fewer shared blocks than a span count apart. Generated tokens do not count.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from policies.types import Request

SPAN_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Footprint:
    """The KV blocks a prompt fills, the last one in part."""

    spans: Sequence[bytes]
    """The key of every 32nd block, which names all blocks before it too."""
    blocks: int

    @classmethod
    def of(cls, request: Request) -> "Footprint":
        return cls(request.blocks[SPAN_BLOCKS - 1 :: SPAN_BLOCKS], -(-request.prompt_tokens // request.block_tokens))

    @property
    def apart(self) -> int:
        """Blocks after the last span: never seen as shared."""
        return self.blocks - SPAN_BLOCKS * len(self.spans)


class ActiveBlocks:
    """One replica's unfinished prompts."""

    __slots__ = ("_prompts", "_uses", "blocks")

    def __init__(self) -> None:
        self.blocks = 0
        self._prompts: deque[Footprint] = deque()
        self._uses: dict[bytes, int] = {}

    def keep(self, in_flight: int) -> None:
        """No more than these many are unfinished: the oldest ended."""
        while len(self._prompts) > in_flight:
            ended = self._prompts.popleft()
            self.blocks -= ended.apart
            for span in ended.spans:
                uses = self._uses.pop(span)
                if uses > 1:
                    self._uses[span] = uses - 1
                else:
                    self.blocks -= SPAN_BLOCKS

    def with_prompt(self, prompt: Footprint) -> int:
        """Blocks in use once this prompt is there too."""
        return self.blocks + prompt.blocks - SPAN_BLOCKS * self._shared(prompt.spans)

    def _shared(self, spans: Sequence[bytes]) -> int:
        """Leading spans in use. Keys are chained: where one is in use, all before it are."""
        uses = self._uses
        if not spans or spans[0] not in uses:
            return 0
        if spans[-1] in uses:
            return len(spans)
        shared, beyond = 1, len(spans)
        while beyond - shared > 1:
            middle = (shared + beyond) // 2
            if spans[middle - 1] in uses:
                shared = middle
            else:
                beyond = middle
        return shared

    def sent(self, prompt: Footprint) -> None:
        """This prompt goes here."""
        self.blocks = self.with_prompt(prompt)
        self._prompts.append(prompt)
        for span in prompt.spans:
            self._uses[span] = self._uses.get(span, 0) + 1
