"""One replica: vLLM's scheduler (0.32, first come first served) over its block pool, with no model and no clock.

The one rule: what the engine would decide, in its order. In a step the running requests grow first, the rest of the
token budget admits waiting ones in chunks; a request that finds no block makes the youngest running one give all of its
blocks back and wait at the front, and such a step admits nobody. Blocks can be hit from the moment they are scheduled.
The caller owns time: `step` decides and says how long it takes, `finish_step` gives the tokens. With `async_scheduling`
what ended keeps its blocks for one more step, which is decided before the engine sees the end.
"""

from collections import deque

from sim.cost import Profile
from sim.errors import JobRefused
from sim.jobs import Counters, Job, JobId, Step, Tokens
from sim.kv_cache import KvCache


class _Sequence:
    """A job's state in the engine."""

    __slots__ = ("blocks", "cached_tokens", "computed", "filled", "job", "output", "running")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.blocks: list[int] = []
        self.computed = 0
        self.filled = 0
        self.output = 0
        self.cached_tokens: int | None = None
        self.running = False

    @property
    def known(self) -> int:
        return self.job.prompt_tokens + self.output

    @property
    def ended(self) -> bool:
        return self.output == self.job.output_tokens


class SimReplica:
    """The pure engine of one replica. `blocks` counts as the engine does, the null block with it."""

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
        async_scheduling: bool = False,
    ) -> None:
        self.name = name
        self.profile = profile
        self.cache = KvCache(blocks, block_tokens, record_events=record_events)
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.counters = Counters()
        self._sequences: dict[JobId, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._step: list[tuple[_Sequence, int]] | None = None
        self._async_scheduling = async_scheduling
        self._leaving: list[_Sequence] = []  # those that have ended and are not seen to have

    def __repr__(self) -> str:
        cache = self.cache
        return (
            f"<SimReplica {self.name}: {self.running} running, {self.waiting} waiting, "
            f"{cache.used_blocks} of {cache.usable_blocks} blocks pinned, {cache.cached_keys} cached>"
        )

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def kv_used_fraction(self) -> float:
        return self.cache.used_blocks / self.cache.usable_blocks

    def cached_tokens(self, job_id: JobId) -> int | None:
        """Prompt tokens a live job found in the cache; None before its admission."""
        return self._sequences[job_id].cached_tokens

    def submit(self, job: Job) -> None:
        """The job waits for its turn."""
        if job.id in self._sequences:
            raise JobRefused(f"job {job.id} is on replica {self.name} already: give every job its own id")
        job.check_fits(self.name, self.cache.usable_blocks, self.cache.block_tokens)
        sequence = self._sequences[job.id] = _Sequence(job)
        self._waiting.append(sequence)

    def abort(self, job_id: JobId) -> bool:
        """Forget a job, its full blocks stay cached; False when it is not here (any more)."""
        sequence = self._sequences.pop(job_id, None)
        if sequence is None:
            return False
        if sequence.running:
            self._running.remove(sequence)
            self._give_back(sequence)
        else:
            self._waiting.remove(sequence)
        self.counters.aborted += 1
        return True

    def step(self) -> Step | None:
        """Decide the next step; None when there is nothing to compute. `finish_step` must follow before the next."""
        if self._step is not None:
            raise RuntimeError(f"replica {self.name} is in a step: call finish_step first")
        plan: list[tuple[_Sequence, int]] = []
        preempted: list[JobId] = []
        admitted: dict[JobId, int] = {}
        self._decide(plan, preempted, admitted)
        if self._leaving and not plan:  # the engine sees what has ended, and decides anew
            self._leave([])
            self._decide(plan, preempted, admitted)
        if not plan:
            return None
        duration_s = self._duration_s(plan)
        for sequence, count in plan:
            sequence.computed += count
            self.counters.computed_tokens += count
        self._step = plan
        self.counters.steps += 1
        self.counters.busy_s += duration_s
        return Step(duration_s, {s.job.id: count for s, count in plan}, admitted, tuple(preempted))

    def finish_step(self) -> Tokens:
        """The step's time has passed: sequences whose known tokens are all computed got one more."""
        plan, self._step = self._step or [], None
        made, first, finished = [], [], []
        ended: list[_Sequence] = []
        for sequence, _ in plan:
            job = sequence.job
            if not sequence.running or sequence.computed < sequence.known:
                continue  # aborted meanwhile, or still in its prompt
            if not sequence.output:
                first.append(job.id)
                self._count_prompt(sequence)
            sequence.output += 1
            made.append(job.id)
            if sequence.ended:
                finished.append(job.id)
                ended.append(sequence)
                del self._sequences[job.id]
        self._leave(ended)
        self.counters.finished += len(finished)
        self.counters.generated_tokens += len(made)
        return Tokens(tuple(made), tuple(first), tuple(finished))

    def _leave(self, ended: list[_Sequence]) -> None:
        """Blocks of those that ended are free: now, or once the next step is decided if there is anything in it."""
        gone = ended
        if self._async_scheduling:
            gone, self._leaving = self._leaving, ended
            if all(sequence.ended for sequence in self._running):
                gone, self._leaving = gone + ended, []
        for sequence in gone:
            self._give_back(sequence)
        if gone:
            self._running = [sequence for sequence in self._running if sequence.running]

    def clear_cache(self) -> bool:
        """Forget all cached blocks; False while requests hold some."""
        return self.cache.cleared()

    def _decide(self, plan: list[tuple[_Sequence, int]], preempted: list[JobId], admitted: dict[JobId, int]) -> None:
        before = len(preempted)
        budget = self._grow_running(plan, preempted)
        if len(preempted) == before:
            self._admit(plan, admitted, budget)

    def _grow_running(self, plan: list[tuple[_Sequence, int]], preempted: list[JobId]) -> int:
        budget = self.max_batched_tokens
        position = 0
        while position < len(self._running) and budget > 0:
            sequence = self._running[position]
            if sequence.ended:
                position += 1
                continue
            count = min(sequence.known - sequence.computed, budget)
            need = self._missing(sequence, sequence.computed + count)
            while need > self.cache.free_blocks:
                victim = self._running.pop()
                preempted.append(victim.job.id)
                self._preempt(victim)
                if victim is sequence:
                    return budget
            self._take(sequence, need, count)
            plan.append((sequence, count))
            budget -= count
            position += 1
        return budget

    def _admit(self, plan: list[tuple[_Sequence, int]], admitted: dict[JobId, int], budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.max_num_seqs:
            sequence = self._waiting[0]
            hit = self._lookup(sequence)
            whole = -(-sequence.known // self.cache.block_tokens) - len(hit)
            if whole + self.cache.idle(hit) > self.cache.free_blocks:
                return
            self._waiting.popleft()
            if sequence.cached_tokens is None:
                cached = sequence.cached_tokens = len(hit) * self.cache.block_tokens
                admitted[sequence.job.id] = cached
                self.counters.queried_tokens += sequence.known if sequence.job.reads_cache else 0
                self.counters.hit_tokens += cached
            self.cache.pinned(hit)
            sequence.blocks = hit
            sequence.filled = len(hit)
            sequence.computed = len(hit) * self.cache.block_tokens
            sequence.running = True
            self._running.append(sequence)
            count = min(sequence.known - sequence.computed, budget)
            self._take(sequence, self._missing(sequence, sequence.computed + count), count)
            plan.append((sequence, count))
            budget -= count

    def _lookup(self, sequence: _Sequence) -> list[int]:
        if not sequence.job.reads_cache:
            return []
        return self.cache.matched(sequence.job.keys, (sequence.known - 1) // self.cache.block_tokens)

    def _missing(self, sequence: _Sequence, tokens: int) -> int:
        return max(0, -(-tokens // self.cache.block_tokens) - len(sequence.blocks))

    def _take(self, sequence: _Sequence, need: int, count: int) -> None:
        if need:
            sequence.blocks += self.cache.allocated(need)
        full = min((sequence.computed + count) // self.cache.block_tokens, len(sequence.job.keys))
        if full > sequence.filled:
            self.cache.filled(sequence.blocks, sequence.job.keys, sequence.filled, full)
            sequence.filled = full

    def _preempt(self, sequence: _Sequence) -> None:
        self._give_back(sequence)
        if sequence.ended:
            self._leaving.remove(sequence)
            return
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _give_back(self, sequence: _Sequence) -> None:
        self.cache.released(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.filled = 0
        sequence.running = False

    def _count_prompt(self, sequence: _Sequence) -> None:
        self.counters.prompt_tokens += sequence.job.prompt_tokens
        self.counters.cached_tokens += sequence.cached_tokens or 0

    def _duration_s(self, plan: list[tuple[_Sequence, int]]) -> float:
        prefill = pairs = decodes = kv_tokens = 0
        for sequence, count in plan:
            before = sequence.computed
            if count == 1 and sequence.output:
                decodes += 1
                kv_tokens += before + 1
            else:
                prefill += count
                pairs += count * before + count * (count + 1) // 2
        return self.profile.step_s(
            prefill_tokens=prefill,
            prefill_pairs=pairs,
            decode_sequences=decodes,
            decode_kv_tokens=kv_tokens,
            sequences=len(plan),
        )
