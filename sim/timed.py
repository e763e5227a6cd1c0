"""One replica in virtual time: it says when it must be called next, and what had happened by then.

The one rule: the caller owns the clock. A step is decided when the one before it ends, or when a job reaches an idle
replica; what it gave is told when its time has passed, as an engine publishes it. Decode-only steps are one span
(`decode_span`), up to the step in progress when something comes. Not here: decisions (`batched`), who calls (`run`).
"""

from collections import deque

from sim.batched import BatchedReplica
from sim.cache_events import Event
from sim.cost import Profile
from sim.decode_span import DecodeCost, DecodeSpan
from sim.errors import JobRefused
from sim.jobs import Counters, Job, JobId
from sim.run_cache import RunCache


class Moment:
    """What ended when a replica was advanced: `first` tokens, `finished` jobs, and first admissions of the span.

    `admitted` gives the prompt tokens each job found in the cache; `events` is empty unless the cache records them.
    """

    __slots__ = ("admitted", "events", "finished", "first")

    def __init__(
        self, first: tuple[JobId, ...], finished: tuple[JobId, ...], admitted: dict[JobId, int], events: list[Event]
    ) -> None:
        self.first = first
        self.finished = finished
        self.admitted = admitted
        self.events = events


class TimedReplica:
    """A replica for an event loop: call `advance` at `next_s`; `submit` and `abort` may change `next_s`.

    `blocks` counts as the engine does, the null block with it. As the engine, it wants a token budget of at least
    `max_num_seqs`. Between two calls `cache` may lag the decode steps in progress. With `async_scheduling`, on in vLLM
    0.19 unless turned off, a step is decided while the one before it runs: a busy engine sees new jobs, and blocks that
    are free again, a step later.
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
        async_scheduling: bool = False,
    ) -> None:
        self.name = name
        self.profile = profile
        self.next_s: float | None = None
        """When `advance` is due; None while there is nothing to compute."""
        self._engine = BatchedReplica(
            name,
            profile,
            blocks=blocks,
            block_tokens=block_tokens,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            record_events=record_events,
            async_scheduling=async_scheduling,
        )
        self._cost = DecodeCost(profile)
        self._span: DecodeSpan | None = None
        self._ahead = 1 if async_scheduling else 0
        self._unseen: deque[tuple[int, Job]] = deque()  # jobs the engine will look at after so many steps

    def __repr__(self) -> str:
        cache = self.cache
        return (
            f"<TimedReplica {self.name}: {self.running} running, {self.waiting} waiting, "
            f"{cache.used_blocks} of {cache.usable_blocks} blocks pinned, {cache.cached_keys} cached>"
        )

    @property
    def counters(self) -> Counters:
        return self._engine.counters

    @property
    def cache(self) -> RunCache:
        return self._engine.cache

    @property
    def running(self) -> int:
        return len(self._engine.running)

    @property
    def waiting(self) -> int:
        return len(self._engine.waiting) + len(self._unseen)

    @property
    def kv_used_fraction(self) -> float:
        """Share of the blocks that running requests pin, as of the last call."""
        return self.cache.used_blocks / self.cache.usable_blocks

    def kv_used_fraction_at(self, now_s: float) -> float:
        """The same as of `now_s`, at most `next_s`, with what the decode steps since the last call have taken."""
        used = self.cache.used_blocks
        if self._span is not None:
            used += self._engine.batch.blocks_needed(self._span.begun(now_s))
        return used / self.cache.usable_blocks

    def submit(self, job: Job, now_s: float) -> None:
        """The job waits for its turn; an idle replica begins at once. `JobRefused` when it can never run."""
        if self.next_s is None:
            self._engine.submit(job)
            self._begin(now_s)
        elif self._ahead:
            self._see_later(job, now_s)
        elif self._engine.submit(job) and self._span is not None:
            self._cut(self._span, now_s)

    def abort(self, job_id: JobId, now_s: float) -> bool:
        """Forget a job, its full blocks stay cached; False when it is not here (any more)."""
        for entry in self._unseen:
            if entry[1].id == job_id:
                self._unseen.remove(entry)
                self.counters.aborted += 1
                return True
        if self._span is not None:
            self._cut(self._span, now_s)
        return self._engine.abort(job_id)

    def advance(self, now_s: float) -> Moment:
        """What had happened by `next_s`, which `now_s` must be; the next steps begin."""
        engine = self._engine
        if self._span is not None:
            self._take(self._span)
        admitted = engine.admitted
        first, finished = engine.ended()
        moment = Moment(tuple(first), tuple(finished), admitted, engine.cache.drained_events())
        if self._unseen:
            self._see()
        self._begin(now_s)
        return moment

    def _begin(self, now_s: float) -> None:
        engine = self._engine
        steps = engine.decode_steps()
        if steps:
            steps = self._unseen[0][0] if self._unseen and self._unseen[0][0] < steps else steps
            batch = engine.batch
            self._span = span = self._cost.span(now_s, steps, batch.count, batch.kv_tokens + batch.count)
            self.next_s = span.end_s
        else:
            self.next_s = now_s + engine.step_s() if engine.running or engine.waiting else None

    def _see_later(self, job: Job, now_s: float) -> None:
        """The step after the one in progress is decided already."""
        self._engine.check(job)
        if any(other.id == job.id for _, other in self._unseen):
            raise JobRefused(f"job {job.id} is on replica {self.name} already: give every job its own id")
        steps = 1 + self._ahead
        span = self._span
        if span is not None:
            begun = span.begun(now_s)
            span.steps = min(span.steps, begun + self._ahead)
            self.next_s = span.end_s
            steps -= span.steps - begun
        self._unseen.append((steps, job))

    def _see(self) -> None:
        """The engine gets the jobs that are due, or all of them if it has nothing else to do."""
        engine = self._engine
        unseen, self._unseen = self._unseen, deque()
        idle = not engine.running and not engine.waiting and unseen[0][0] > 1
        for steps, job in unseen:
            if steps == 1 or idle:
                engine.submit(job)
            else:
                self._unseen.append((steps - 1, job))

    def _cut(self, span: DecodeSpan, now_s: float) -> None:
        """The span ends with the step in progress."""
        begun = span.begun(now_s)
        if self._unseen:
            self._unseen = deque((steps + span.steps - begun, job) for steps, job in self._unseen)
        span.steps = begun
        self.next_s = span.end_s
        self._take(span)

    def _take(self, span: DecodeSpan) -> None:
        self._engine.taken(span.steps, span.after_s(span.steps))
        self._span = None
