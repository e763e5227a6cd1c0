"""One replica in virtual time: `replica`'s scheduler at the speed a simulation of a fleet needs.

The one rule: it decides exactly what `replica` would, without looking at every sequence in every step. Sequences that
decode are only counted (`decode_batch`), and steps in which nothing else happens are taken at once (`decode_span`), up
to the step in progress when something comes.
The caller owns the clock: a step is decided when the one before it ends, or when a job reaches an idle replica; what it
gave is told when its time has passed. Not here: who calls when (`run`), blocks (`run_cache`).
"""

from collections import deque
from dataclasses import dataclass

from sim.cost import Profile
from sim.decode_batch import DecodeBatch, Sequence
from sim.decode_span import DecodeCost, DecodeSpan
from sim.errors import JobRefused
from sim.jobs import Counters, Job, JobId
from sim.kv_cache import Event
from sim.run_cache import RunCache


@dataclass(slots=True)
class Moment:
    """What ended when a replica was advanced: `first` tokens, `finished` jobs, and first admissions of the span.

    `admitted` gives the prompt tokens each job found in the cache; `events` is empty unless the cache records them.
    """

    first: tuple[JobId, ...]
    finished: tuple[JobId, ...]
    admitted: dict[JobId, int]
    events: list[Event]


class _Prefill:
    """What one step computes beside the sequences that simply decode. `complete` get a token at its end."""

    __slots__ = ("complete", "decodes", "kv_tokens", "pairs", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.pairs = 0
        self.decodes = 0
        self.kv_tokens = 0
        self.sequences = 0
        self.complete: list[Sequence] = []


class TimedReplica:
    """A replica for an event loop: call `advance` at `next_s`; `submit` and `abort` may change `next_s`.

    `blocks` counts as the engine does, the null block with it. As the engine, it wants a token budget of at least
    `max_num_seqs`. Between two calls `cache` and `kv_used_fraction` may lag the decode steps in progress.
    """

    def __init__(
        self,
        name: str,
        profile: Profile,
        *,
        blocks: int,
        block_tokens: int,
        max_num_seqs: int = 256,
        max_batched_tokens: int = 8192,
        record_events: bool = False,
    ) -> None:
        if not 1 <= max_num_seqs <= max_batched_tokens:
            raise ValueError(f"{max_batched_tokens} tokens a step are too few for {max_num_seqs} sequences: allow more")
        self.name = name
        self.profile = profile
        self.cache = RunCache(blocks, block_tokens, record_events=record_events)
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.counters = Counters()
        self.next_s: float | None = None
        """When `advance` is due; None while there is nothing to compute."""
        self._block_tokens = block_tokens
        self._cost = DecodeCost(profile)
        self._sequences: dict[JobId, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: dict[Sequence, None] = {}
        self._admissions = 0
        self._batch = DecodeBatch(block_tokens)
        self._partial: Sequence | None = None  # its prompt is not computed yet; always the youngest running one
        self._stuck = False  # the head of the waiting ones finds no room before somebody leaves
        self._span: DecodeSpan | None = None
        self._complete: list[Sequence] = []
        self._admitted: dict[JobId, int] = {}

    def __repr__(self) -> str:
        cache = self.cache
        return (
            f"<TimedReplica {self.name}: {self.running} running, {self.waiting} waiting, "
            f"{cache.used_blocks} of {cache.usable_blocks} blocks pinned, {cache.cached_keys} cached>"
        )

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_used_fraction(self) -> float:
        return self.cache.used_blocks / self.cache.usable_blocks

    def submit(self, job: Job, now_s: float) -> None:
        """The job waits for its turn; an idle replica begins at once. `JobRefused` when it can never run."""
        if job.id in self._sequences:
            raise JobRefused(f"job {job.id} is on replica {self.name} already: give every job its own id")
        if job.prompt_tokens < 1 or job.output_tokens < 1:
            raise JobRefused(f"job {job.id} needs a token of prompt and one of answer at least")
        need = -(-(job.prompt_tokens + job.output_tokens - 1) // self._block_tokens)
        if need > self.cache.usable_blocks:
            raise JobRefused(
                f"job {job.id} needs {need} blocks, replica {self.name} has {self.cache.usable_blocks}: "
                "shorten it or enlarge the cache"
            )
        sequence = self._sequences[job.id] = Sequence(job)
        self._waiting.append(sequence)
        if self.next_s is None:
            self._begin(now_s)
        elif self._span is not None and len(self._waiting) == 1 and self._may_admit:
            self._cut(self._span, now_s)

    def abort(self, job_id: JobId, now_s: float) -> bool:
        """Forget a job, its full blocks stay cached; False when it is not here (any more)."""
        sequence = self._sequences.pop(job_id, None)
        if sequence is None:
            return False
        if self._span is not None:
            self._cut(self._span, now_s)
        if sequence.running:
            del self._running[sequence]
            if sequence.decoding:
                self._batch.left(sequence)
                sequence.computed += 1  # by the step in progress
            self._give_back(sequence)
        else:
            self._waiting.remove(sequence)
        self._stuck = False
        self.counters.aborted += 1
        return True

    def advance(self, now_s: float) -> Moment:
        """What had happened by `next_s`, which `now_s` must be; the next steps begin."""
        if self._span is not None:
            self._take(self._span)
        batch, counters = self._batch, self.counters
        counters.generated_tokens += batch.count
        batch.passed(1)
        first: list[JobId] = []
        finished = batch.ended()
        for sequence in self._complete:
            if sequence.running:  # nobody aborted it meanwhile
                self._token(sequence, first, finished)
        for sequence in finished:
            self._finish(sequence)
        moment = Moment(tuple(first), tuple([s.job.id for s in finished]), self._admitted, self.cache.drained_events())
        self._begin(now_s)
        return moment

    def _token(self, sequence: Sequence, first: list[JobId], finished: list[Sequence]) -> None:
        job, counters = sequence.job, self.counters
        if not sequence.output:
            first.append(job.id)
            counters.prompt_tokens += job.prompt_tokens
            counters.cached_tokens += sequence.cached_tokens or 0
        sequence.output += 1
        counters.generated_tokens += 1
        if sequence.output == job.output_tokens:
            finished.append(sequence)
        else:
            self._batch.joined(sequence)

    def _finish(self, sequence: Sequence) -> None:
        del self._sequences[sequence.job.id], self._running[sequence]
        self._give_back(sequence)
        self._stuck = False
        self.counters.finished += 1

    def _give_back(self, sequence: Sequence) -> None:
        if sequence is self._partial:
            self._partial = None
        blocks = -(-sequence.computed // self._block_tokens)
        self.cache.released(sequence, blocks - sequence.filled)
        sequence.computed = 0
        sequence.running = False

    # -- spans of decode steps -------------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        batch = self._batch
        self._complete = []
        self._admitted = {}
        if batch.count and self._partial is None and not self._admits_soon:
            steps = min(batch.steps_to_end(), batch.steps_within(self.cache.free_blocks))
            if steps:
                self._span = span = self._cost.span(now_s, steps, batch.count, batch.kv_tokens + batch.count)
                self.next_s = span.end_s
                return
        self.next_s = now_s + self._step_s() if self._running or self._waiting else None

    @property
    def _admits_soon(self) -> bool:
        """Whether the next steps must look at the waiting ones: what is decoded could also become the head's prefix."""
        if not self._waiting or not self._may_admit:
            return False
        return not self._stuck or self._batch.fills_any(self._waiting[0].job.keys)

    @property
    def _may_admit(self) -> bool:
        return len(self._running) < self.max_num_seqs and self._batch.count < self.max_batched_tokens

    def _cut(self, span: DecodeSpan, now_s: float) -> None:
        """The span ends with the step in progress."""
        span.steps = span.begun(now_s)
        self.next_s = span.end_s
        self._take(span)

    def _take(self, span: DecodeSpan) -> None:
        """All steps of the span have begun, the last one is in progress."""
        batch, counters, steps = self._batch, self.counters, span.steps
        if self.cache.records_events:
            for ahead in range(steps):
                self._grow_in_order(ahead)
        else:
            self._grow_at_once(steps)
        counters.steps += steps
        counters.busy_s += span.after_s(steps)
        counters.computed_tokens += steps * batch.count
        counters.generated_tokens += (steps - 1) * batch.count
        batch.passed(steps - 1)
        self._span = None

    def _grow_at_once(self, steps: int) -> None:
        """Everybody fills and takes the blocks of so many decode steps."""
        batch, cache = self._batch, self.cache
        cache.allocated(batch.blocks_needed(steps))
        late: list[tuple[int, int, Sequence]] = []
        for ahead in range(min(steps, self._block_tokens)):
            filling = batch.needing(ahead + 1)
            if filling:
                times = (steps - ahead - 1) // self._block_tokens + 1
                for sequence in cache.filled_alone(filling, times):
                    late += [(ahead + turn * self._block_tokens, sequence.order, sequence) for turn in range(times)]
        for _, _, sequence in sorted(late, key=lambda entry: entry[:2]):
            self._fill(sequence, sequence.filled + 1)

    def _fill(self, sequence: Sequence, blocks: int, *, unheld: bool = False) -> None:
        blocks = min(blocks, len(sequence.keys))
        if blocks > sequence.filled:
            self.cache.filled(sequence, blocks, unheld=unheld)

    def _grow_in_order(self, ahead: int) -> bool:
        """Everybody fills and takes blocks of one decode step; whether somebody had to give them all back."""
        batch, cache = self._batch, self.cache
        filling, needing = batch.needing(ahead + 1), batch.needing(ahead)
        preempted = False
        for sequence in sorted({**filling, **needing}, key=lambda sequence: sequence.order):
            if not sequence.decoding:
                continue
            fills = sequence in filling
            if sequence in needing:
                while not cache.free_blocks:
                    victim = self._preempt()
                    preempted = True
                    if victim is sequence:
                        return True
                cache.allocated(1)
            if fills:
                self._fill(sequence, sequence.filled + 1)
        return preempted

    # -- one step --------------------------------------------------------------------------------------------------

    def _step_s(self) -> float:
        """Decide a step; the seconds it takes."""
        batch, counters, prefill = self._batch, self.counters, _Prefill()
        if self.cache.records_events or len(batch.needing(0)) > self.cache.free_blocks:
            preempted = self._grow_in_order(0)
        else:
            self._grow_at_once(1)
            preempted = False
        budget = self.max_batched_tokens - batch.count
        if self._partial is not None and budget:
            sequence = self._partial
            count = min(sequence.known - sequence.computed, budget)
            if self._missing(sequence, count) > self.cache.free_blocks:
                self._preempt()
                preempted = True
            else:
                self._compute(sequence, count, prefill)
                budget -= count
        if not preempted:
            self._admit(budget, prefill)
        self._complete = prefill.complete
        duration_s = self.profile.step_s(
            prefill_tokens=prefill.tokens,
            prefill_pairs=prefill.pairs,
            decode_sequences=batch.count + prefill.decodes,
            decode_kv_tokens=batch.kv_tokens + batch.count + prefill.kv_tokens,
            sequences=batch.count + prefill.sequences,
        )
        counters.steps += 1
        counters.busy_s += duration_s
        counters.computed_tokens += batch.count + prefill.tokens + prefill.decodes
        return duration_s

    def _admit(self, budget: int, prefill: _Prefill) -> None:
        cache = self.cache
        while self._waiting and budget > 0 and len(self._running) < self.max_num_seqs:
            sequence = self._waiting[0]
            limit = (sequence.known - 1) // self._block_tokens
            path = cache.path(sequence.keys, limit + 1) if sequence.job.reads_cache else []
            hit = path[-1][1] if path else 0
            unheld = sequence.job.reads_cache and hit <= limit
            if hit > limit:
                hit = limit
                run, _ = path.pop()
                if run.start < limit:
                    path.append((run, limit))
            if -(-sequence.known // self._block_tokens) - hit + cache.idle(path) > cache.free_blocks:
                self._stuck = True
                return
            self._waiting.popleft()
            self._count_admission(sequence, hit * self._block_tokens)
            cache.pinned(sequence, path)
            sequence.computed = hit * self._block_tokens
            sequence.running = True
            self._admissions += 1
            sequence.order = self._admissions
            self._running[sequence] = None
            count = min(sequence.known - sequence.computed, budget)
            self._compute(sequence, count, prefill, unheld=unheld)
            budget -= count

    def _count_admission(self, sequence: Sequence, cached_tokens: int) -> None:
        if sequence.cached_tokens is None:
            sequence.cached_tokens = self._admitted[sequence.job.id] = cached_tokens
            self.counters.queried_tokens += sequence.known if sequence.job.reads_cache else 0
            self.counters.hit_tokens += cached_tokens

    def _compute(self, sequence: Sequence, count: int, prefill: _Prefill, *, unheld: bool = False) -> None:
        """A chunk of a prompt, or the one token that a preempted sequence lacks."""
        before = sequence.computed
        need = self._missing(sequence, count)
        if need:
            self.cache.allocated(need)
        sequence.computed = before + count
        self._fill(sequence, sequence.computed // self._block_tokens, unheld=unheld)
        prefill.sequences += 1
        if count == 1 and sequence.output:
            prefill.decodes += 1
            prefill.kv_tokens += before + 1
        else:
            prefill.tokens += count
            prefill.pairs += count * before + count * (count + 1) // 2
        if sequence.computed == sequence.known:
            prefill.complete.append(sequence)
            self._partial = None
        else:
            self._partial = sequence

    def _missing(self, sequence: Sequence, count: int) -> int:
        return -(-(sequence.computed + count) // self._block_tokens) - -(-sequence.computed // self._block_tokens)

    def _preempt(self) -> Sequence:
        """The youngest running sequence gives all of its blocks back and waits at the front."""
        victim, _ = self._running.popitem()
        if victim.decoding:
            self._batch.left(victim)
        self._give_back(victim)
        self._waiting.appendleft(victim)
        self._stuck = False
        self.counters.preemptions += 1
        return victim
