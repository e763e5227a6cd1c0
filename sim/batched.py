"""`replica`'s scheduler at the speed a simulation of a fleet needs: no clock, and no look at every sequence each step.

The one rule: it decides exactly what `replica` would. Sequences that decode are only counted (`decode_batch`), blocks
are kept in runs (`run_cache`), and steps in which nothing but decoding happens are taken together: as many as neither
end anybody's answer nor need more blocks than are free. What must be told step by step, events and preemptions, is
gone through in the engine's order. Not here: time (`timed`).
With `async_scheduling` a step is decided before the engine sees what the one before it ended: that keeps its blocks and
its place in the batch for one more step.
"""

from collections import deque

from sim.cost import Profile
from sim.decode_batch import DecodeBatch, Prefill, Sequence
from sim.errors import JobRefused
from sim.jobs import Counters, Job, JobId
from sim.run_cache import RunCache


class BatchedReplica:
    """The engine of one replica. `blocks` counts as the engine does, the null block with it.

    A step is decided by `step_s`, or several by `decode_steps` and `taken`; `ended` must follow before the next.
    """

    def __init__(
        self,
        name: str,
        profile: Profile,
        *,
        blocks: int,
        block_tokens: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        record_events: bool,
        async_scheduling: bool = False,
    ) -> None:
        if not 1 <= max_num_seqs <= max_batched_tokens:
            raise ValueError(f"{max_batched_tokens} tokens a step are too few for {max_num_seqs} sequences: allow more")
        self.name = name
        self.cache = RunCache(blocks, block_tokens, record_events=record_events)
        self.counters = Counters()
        self.batch = DecodeBatch(block_tokens)
        self.running: dict[Sequence, None] = {}
        self.waiting: deque[Sequence] = deque()
        self.admitted: dict[JobId, int] = {}
        """Prompt tokens found in the cache by those admitted for the first time in the step in progress."""
        self._profile = profile
        self._block_tokens = block_tokens
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._sequences: dict[JobId, Sequence] = {}
        self._admissions = 0
        self._partial: Sequence | None = None  # its prompt is not computed yet; always the youngest running one
        self._stuck = False  # the head of the waiting ones finds no room before somebody leaves
        self._complete: list[Sequence] = []  # prompts that the step in progress completes
        self._async_scheduling = async_scheduling
        self._leaving: list[Sequence] = []  # those that have ended and are not seen to have

    def submit(self, job: Job) -> bool:
        """The job waits for its turn; whether it may get it in the next step. `JobRefused` when it can never run."""
        self.check(job)
        sequence = self._sequences[job.id] = Sequence(job, self.batch)
        self.waiting.append(sequence)
        return len(self.waiting) == 1 and self._may_admit

    def check(self, job: Job) -> None:
        """Raise `JobRefused` for a job that can never run, or is here already."""
        if job.id in self._sequences:
            raise JobRefused(f"job {job.id} is on replica {self.name} already: give every job its own id")
        job.check_fits(self.name, self.cache.usable_blocks, self.cache.block_tokens)

    def abort(self, job_id: JobId) -> bool:
        """Forget a job, its full blocks stay cached; False when it is not here (any more)."""
        sequence = self._sequences.pop(job_id, None)
        if sequence is None:
            return False
        if sequence.running:
            del self.running[sequence]
            if sequence.decoding:
                self.batch.left(sequence)
            self._give_back(sequence)
        else:
            self.waiting.remove(sequence)
        self._stuck = False
        self.counters.aborted += 1
        return True

    def ended(self) -> tuple[list[JobId], list[JobId]]:
        """The step in progress is over: jobs that got their first token, and jobs that got their last."""
        self.counters.generated_tokens += self.batch.count
        self.batch.passed(1)
        first: list[JobId] = []
        finished = self.batch.ended()
        for sequence in self._complete:
            if sequence.running:  # nobody aborted it meanwhile
                self._token(sequence, first, finished)
        for sequence in finished:
            del self._sequences[sequence.job.id]
        self.counters.finished += len(finished)
        self._leave(finished)
        self._complete = []
        self.admitted = {}
        return first, [sequence.job.id for sequence in finished]

    def _leave(self, finished: list[Sequence]) -> None:
        """Blocks of those that ended are free: now, or once the next step is decided if there is anything in it."""
        gone = finished
        if self._async_scheduling:
            gone, self._leaving = self._leaving, finished
            if not self.batch.count and self._partial is None:
                gone, self._leaving = gone + finished, []
        for sequence in gone:
            del self.running[sequence]
            self._give_back(sequence)
            self._stuck = False

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
            self.batch.joined(sequence)
            self.cache.follow(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        if sequence is self._partial:
            self._partial = None
        blocks = -(-sequence.computed // self._block_tokens)
        self.cache.released(sequence, blocks - sequence.reached())
        sequence.computed = 0
        sequence.running = False

    def decode_steps(self) -> int:
        """How many of the next steps do nothing but decode what runs, with the blocks that are free; 0 if not one."""
        batch = self.batch
        if not batch.count or self._partial is not None or self._leaving or self._admits_soon:
            return 0
        steps, free = batch.steps_to_end(), self.cache.free_blocks
        if (steps // self._block_tokens + 1) * batch.count <= free:
            return steps  # enough for everybody
        return min(steps, batch.steps_within(free))

    def taken(self, steps: int, busy_s: float) -> None:
        """So many decode steps have begun, the last of them is in progress."""
        batch, counters = self.batch, self.counters
        if self.cache.records_events:
            for ahead in range(steps):
                self._grow_in_order(ahead)
        else:
            self._grow_at_once(steps)
        counters.steps += steps
        counters.busy_s += busy_s
        counters.computed_tokens += steps * batch.count
        counters.generated_tokens += (steps - 1) * batch.count
        batch.passed(steps - 1)

    @property
    def _admits_soon(self) -> bool:
        """Whether the next steps must look at the waiting ones: what is decoded could also become the head's prefix."""
        if not self.waiting or not self._may_admit:
            return False
        return not self._stuck or self.batch.fills_any(self.waiting[0].job.keys)

    @property
    def _may_admit(self) -> bool:
        return len(self.running) < self._max_num_seqs and self.batch.count < self._max_batched_tokens

    def _grow_at_once(self, steps: int) -> None:
        """Everybody fills and takes the blocks of so many decode steps."""
        batch, cache = self.batch, self.cache
        need = batch.blocks_needed(steps)
        if need:
            cache.allocated(need)
        batch.begun += steps
        if cache.watched:
            turns = [
                (ahead, sequence.order, sequence)
                for sequence in self.running
                if sequence.decoding and not sequence.followed
                for ahead in range(batch.fills_in(sequence), steps, self._block_tokens)
            ]
            for _, _, sequence in sorted(turns, key=lambda turn: turn[:2]):
                self._fill(sequence, sequence.filled + 1)

    def _fill(self, sequence: Sequence, blocks: int, *, unheld: bool = False) -> None:
        blocks = min(blocks, len(sequence.keys))
        if blocks > sequence.filled:
            self.cache.filled(sequence, blocks, unheld=unheld)

    def _grow_in_order(self, ahead: int) -> bool:
        """Everybody fills and takes blocks of one decode step; whether somebody had to give them all back."""
        batch, cache = self.batch, self.cache
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
                        batch.begun += 1
                        return True
                cache.allocated(1)
            if fills:
                self._fill(sequence, sequence.reached() + 1)
        batch.begun += 1
        return preempted

    def step_s(self) -> float:
        """Decide a step; the seconds it takes."""
        batch, counters, prefill = self.batch, self.counters, Prefill()
        self._decide(prefill)
        if self._leaving and not batch.count and not prefill.sequences:
            batch.begun -= 1  # there is nothing in it: the engine sees what has ended, and decides anew
            self._leave([])
            self._decide(prefill)
        self._complete = prefill.complete
        duration_s = self._profile.step_s(
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

    def _decide(self, prefill: Prefill) -> None:
        batch = self.batch
        if self.cache.records_events or len(batch.needing(0)) > self.cache.free_blocks:
            preempted = self._grow_in_order(0)
        else:
            self._grow_at_once(1)
            preempted = False
        budget = self._max_batched_tokens - batch.count
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

    def _admit(self, budget: int, prefill: Prefill) -> None:
        cache = self.cache
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
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
            self.waiting.popleft()
            self._count_admission(sequence, hit * self._block_tokens)
            cache.pinned(sequence, path)
            sequence.computed = hit * self._block_tokens
            sequence.running = True
            self._admissions += 1
            sequence.order = self._admissions
            self.running[sequence] = None
            count = min(sequence.known - sequence.computed, budget)
            self._compute(sequence, count, prefill, unheld=unheld)
            budget -= count

    def _count_admission(self, sequence: Sequence, cached_tokens: int) -> None:
        if sequence.cached_tokens is None:
            sequence.cached_tokens = self.admitted[sequence.job.id] = cached_tokens
            self.counters.queried_tokens += sequence.known if sequence.job.reads_cache else 0
            self.counters.hit_tokens += cached_tokens

    def _compute(self, sequence: Sequence, count: int, prefill: Prefill, *, unheld: bool = False) -> None:
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
        victim, _ = self.running.popitem()
        if victim.decoding:
            self.batch.left(victim)
        self._give_back(victim)
        self._stuck = False
        if victim in self._leaving:
            self._leaving.remove(victim)
            return victim
        self.waiting.appendleft(victim)
        self.counters.preemptions += 1
        return victim
