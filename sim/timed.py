"""One replica in virtual time: it says when it must be called next, and what had happened by then.

The one rule: the caller owns the clock. A step is decided when the one before it ends, or when a job reaches an idle
replica; what it gave is told when its time has passed, as an engine publishes it. Decode-only steps are one span
(`decode_span`), up to the step in progress when something comes. Not here: decisions (`batched`), who calls (`run`).
"""

from dataclasses import dataclass

from sim.batched import BatchedReplica
from sim.cost import Profile
from sim.decode_span import DecodeCost, DecodeSpan
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
        )
        self._cost = DecodeCost(profile)
        self._span: DecodeSpan | None = None

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
        return len(self._engine.waiting)

    @property
    def kv_used_fraction(self) -> float:
        return self.cache.used_blocks / self.cache.usable_blocks

    def submit(self, job: Job, now_s: float) -> None:
        """The job waits for its turn; an idle replica begins at once. `JobRefused` when it can never run."""
        soon = self._engine.submit(job)
        if self.next_s is None:
            self._begin(now_s)
        elif soon and self._span is not None:
            self._cut(self._span, now_s)

    def abort(self, job_id: JobId, now_s: float) -> bool:
        """Forget a job, its full blocks stay cached; False when it is not here (any more)."""
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
        self._begin(now_s)
        return moment

    def _begin(self, now_s: float) -> None:
        engine = self._engine
        steps = engine.decode_steps()
        if steps:
            batch = engine.batch
            self._span = span = self._cost.span(now_s, steps, batch.count, batch.kv_tokens + batch.count)
            self.next_s = span.end_s
        else:
            self.next_s = now_s + engine.step_s() if engine.running or engine.waiting else None

    def _cut(self, span: DecodeSpan, now_s: float) -> None:
        """The span ends with the step in progress."""
        span.steps = span.begun(now_s)
        self.next_s = span.end_s
        self._take(span)

    def _take(self, span: DecodeSpan) -> None:
        self._engine.taken(span.steps, span.after_s(span.steps))
        self._span = None
