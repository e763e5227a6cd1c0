"""One replica in virtual time: it says when it must be called next, and what had happened by then.

The one rule: the caller owns the clock. A step is decided when the one before it ends, or when a job reaches an idle
replica; its tokens and the events of its decisions are told when its time has passed, as an engine publishes them.
Not here: what a step decides (`replica`) and who calls when (`run`).
"""

from dataclasses import dataclass

from sim.cost import Profile
from sim.jobs import Counters, Job, JobId, Step
from sim.kv_cache import Event, KvCache
from sim.replica import SimReplica


@dataclass(frozen=True, slots=True)
class Moment:
    """What ended when a replica was advanced: `first` tokens, `finished` jobs, and first admissions of the span.

    `admitted` gives the prompt tokens each job found in the cache; `events` is empty unless the cache records them.
    """

    first: tuple[JobId, ...]
    finished: tuple[JobId, ...]
    admitted: dict[JobId, int]
    events: list[Event]


class TimedReplica:
    """A replica for an event loop: call `advance` at `next_s`; `submit` and `abort` may change `next_s`."""

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
        self._engine = SimReplica(
            name,
            profile,
            blocks=blocks,
            block_tokens=block_tokens,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            record_events=record_events,
        )
        self._step: Step | None = None
        self.next_s: float | None = None
        """When `advance` is due; None while there is nothing to compute."""

    @property
    def counters(self) -> Counters:
        return self._engine.counters

    @property
    def cache(self) -> KvCache:
        return self._engine.cache

    @property
    def running(self) -> int:
        return self._engine.running

    @property
    def waiting(self) -> int:
        return self._engine.waiting

    @property
    def kv_used_fraction(self) -> float:
        return self._engine.kv_used_fraction

    def submit(self, job: Job, now_s: float) -> None:
        """The job waits for its turn; an idle replica begins at once. `JobRefused` when it can never run."""
        self._engine.submit(job)
        if self.next_s is None:
            self._begin(now_s)

    def abort(self, job_id: JobId, now_s: float) -> bool:  # noqa: ARG002 -- its caller has it, a jump needs it
        """Forget a job, its full blocks stay cached; False when it is not here (any more)."""
        return self._engine.abort(job_id)

    def advance(self, now_s: float) -> Moment:
        """What had happened by `next_s`, which `now_s` must be; the next step begins."""
        step, tokens = self._step, self._engine.finish_step()
        admitted = step.admitted if step is not None else {}
        moment = Moment(tokens.first, tokens.finished, admitted, self._engine.cache.drained_events())
        self._begin(now_s)
        return moment

    def _begin(self, now_s: float) -> None:
        self._step = self._engine.step()
        self.next_s = None if self._step is None else now_s + self._step.duration_s
