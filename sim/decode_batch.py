"""The sequences of a replica that decode, one token each a step, without looking at every one of them in every step.

The one rule: what a step needs to know is counted when a sequence joins or leaves. They stand in a ring by the place
they have in their last block, since all move on by one token a step, and in a heap by the step in which they end.
Not here: who joins, and where blocks come from.
"""

from heapq import heappop, heappush

from sim.jobs import Job
from sim.runs import Hold


class Sequence(Hold):
    """A job's state in the engine. While it decodes, `computed` and `output` are those of the time it joined."""

    __slots__ = ("batch", "cached_tokens", "computed", "decoding", "job", "joined_step", "order", "output", "running")

    def __init__(self, job: Job, batch: "DecodeBatch") -> None:
        super().__init__(job.keys)
        self.batch = batch
        self.job = job
        self.computed = 0
        self.output = 0
        self.order = 0
        """Of its admission: the engine goes through running sequences in this order."""
        self.joined_step = 0
        self.running = False
        self.decoding = False
        self.cached_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Computed, or being computed by a step that has begun."""
        return self.computed + (self.batch.begun - self.joined_step if self.decoding else 0)

    def reached(self) -> int:
        return min(self.tokens // self.batch.block_tokens, len(self.keys))

    @property
    def known(self) -> int:
        """Tokens of the prompt and of the answer so far; not for one that decodes."""
        return self.job.prompt_tokens + self.output


class DecodeBatch:
    """`step` counts the steps that are over, `begun` those for which blocks were found: the one in progress, too.

    Whoever is in here decodes a token in each.
    """

    __slots__ = ("_ends", "_first_keys", "_needing", "_ring", "begun", "block_tokens", "count", "kv_tokens", "step")

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.kv_tokens = 0
        """Computed by all of them together."""
        self.step = 0
        self.begun = 0
        self.block_tokens = block_tokens
        self._ring: list[dict[Sequence, None]] = [{} for _ in range(block_tokens)]  # by the step that needs a block
        self._needing = [0] * 2 * block_tokens  # how many they are, twice in a row
        self._ends: list[tuple[int, int, Sequence]] = []  # (step, order, sequence), stale when it left or came back
        self._first_keys: dict[bytes, int] = {}  # the keys they were to fill next when they joined

    def joined(self, sequence: Sequence) -> None:
        """From the next step on it decodes; its prompt is computed and it has a token."""
        sequence.decoding = True
        sequence.joined_step = self.step
        self.count += 1
        self.kv_tokens += sequence.computed
        place = self._place(sequence)
        self._ring[place][sequence] = None
        self._needing[place] += 1
        self._needing[place + self.block_tokens] += 1
        last = self.step + sequence.job.output_tokens - sequence.output
        heappush(self._ends, (last, sequence.order, sequence))
        if (place := sequence.computed // self.block_tokens) < len(sequence.keys):
            key = sequence.keys[place]
            self._first_keys[key] = self._first_keys.get(key, 0) + 1

    def left(self, sequence: Sequence) -> None:
        """It ended, or was stopped. It knows again what it has computed by the end of the steps that have begun."""
        if (place := sequence.computed // self.block_tokens) < len(sequence.keys):
            key = sequence.keys[place]
            if self._first_keys[key] == 1:
                del self._first_keys[key]
            else:
                self._first_keys[key] -= 1
        sequence.decoding = False
        place = self._place(sequence)
        del self._ring[place][sequence]
        self._needing[place] -= 1
        self._needing[place + self.block_tokens] -= 1
        self.count -= 1
        self.kv_tokens -= sequence.computed + self.step - sequence.joined_step
        passed = self.begun - sequence.joined_step
        sequence.computed += passed
        sequence.output += passed

    def _place(self, sequence: Sequence) -> int:
        return (sequence.joined_step - sequence.computed) % self.block_tokens

    def passed(self, steps: int) -> None:
        """So many steps are over."""
        self.step += steps
        self.kv_tokens += steps * self.count

    def ended(self) -> list[Sequence]:
        """Those whose last token came with the last step, in the engine's order; they have left."""
        ended = []
        while self._ends and self._ends[0][0] <= self.step:
            _, order, sequence = heappop(self._ends)
            if sequence.decoding and sequence.order == order:
                self.left(sequence)
                ended.append(sequence)
        return ended

    def steps_to_end(self) -> int:
        """Steps until the first of them ends; call it only while there is one."""
        while True:
            last, order, sequence = self._ends[0]
            if sequence.decoding and sequence.order == order:
                return last - self.step
            heappop(self._ends)

    def needing(self, ahead: int) -> dict[Sequence, None]:
        """Those that need a new block in the step after the next `ahead`; they filled one in the step before it."""
        return self._ring[(self.step + ahead) % self.block_tokens]

    def fills_in(self, sequence: Sequence) -> int:
        """Steps before the one in which it fills its next block; then it does so every `block_tokens`."""
        return (self._place(sequence) - 1 - self.step) % self.block_tokens

    def blocks_needed(self, steps: int) -> int:
        """Blocks that the next `steps` steps take."""
        if steps == 1:
            return self._needing[self.step % self.block_tokens]
        rounds, rest = divmod(steps, self.block_tokens)
        start = self.step % self.block_tokens
        return rounds * self.count + sum(self._needing[start : start + rest])

    def steps_within(self, blocks: int) -> int:
        """The most steps that take at most so many blocks; call it only while somebody decodes."""
        rounds, left = divmod(blocks, self.count)
        place = start = self.step % self.block_tokens
        while (need := self._needing[place]) <= left:
            left -= need
            place += 1
        return rounds * self.block_tokens + place - start

    def fills_any(self, keys: tuple[bytes, ...]) -> bool:
        """Whether one of these keys may come to be by decoding."""
        return not self._first_keys.keys().isdisjoint(keys)


class Prefill:
    """What one step computes beside the batch: chunks of prompts. `complete` get a token at its end."""

    __slots__ = ("complete", "decodes", "kv_tokens", "pairs", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.pairs = 0
        self.decodes = 0
        self.kv_tokens = 0
        self.sequences = 0
        self.complete: list[Sequence] = []
