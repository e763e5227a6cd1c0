"""A replica in virtual time that looks at every block in every step: what the fast one must equal."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hypothesis import strategies as st

from sim.cache_events import Event
from sim.cost import Profile
from sim.jobs import Counters, Job, JobId, Step
from sim.replica import SimReplica
from sim.timed import Moment

BLOCK = 4


class Timed(Protocol):
    next_s: float | None

    @property
    def counters(self) -> Counters: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def kv_used_fraction_at(self, now_s: float) -> float: ...
    @property
    def cache(self) -> Any: ...
    def submit(self, job: Job, now_s: float) -> None: ...
    def abort(self, job_id: JobId, now_s: float) -> bool: ...
    def advance(self, now_s: float) -> Moment: ...


class StepReplica:
    """`SimReplica` on a virtual clock, one step at a time."""

    def __init__(self, name: str, profile: Profile, *, async_scheduling: bool = False, **settings: Any) -> None:
        self.engine = SimReplica(name, profile, async_scheduling=async_scheduling, **settings)
        self.asynchronous = async_scheduling
        self.arrived: list[Job] = []  # while the step in progress runs and the next one is decided already
        self.seen: list[Job] = []
        self.step: Step | None = None
        self.next_s: float | None = None

    @property
    def counters(self) -> Counters:
        return self.engine.counters

    @property
    def cache(self) -> Any:
        return self.engine.cache

    @property
    def running(self) -> int:
        return self.engine.running

    @property
    def waiting(self) -> int:
        return self.engine.waiting + len(self.arrived) + len(self.seen)

    def kv_used_fraction_at(self, now_s: float) -> float:
        del now_s
        return self.engine.kv_used_fraction

    def submit(self, job: Job, now_s: float) -> None:
        if self.next_s is None or not self.asynchronous:
            self.engine.submit(job)
        else:
            self.arrived.append(job)
        if self.next_s is None:
            self._begin(now_s)

    def abort(self, job_id: JobId, now_s: float) -> bool:
        del now_s
        for jobs in (self.arrived, self.seen):
            if job_id in [job.id for job in jobs]:
                jobs[:] = [job for job in jobs if job.id != job_id]
                self.engine.counters.aborted += 1
                return True
        return self.engine.abort(job_id)

    def advance(self, now_s: float) -> Moment:
        step, tokens = self.step, self.engine.finish_step()
        assert step is not None
        moment = Moment(tokens.first, tokens.finished, step.admitted, self.engine.cache.drained_events())
        self._begin(now_s)
        return moment

    def _begin(self, now_s: float) -> None:
        due, self.seen, self.arrived = self.seen, self.arrived, []
        if self.engine.idle and not due:
            due, self.seen = self.seen, []
        for job in due:
            self.engine.submit(job)
        self.step = self.engine.step()
        self.next_s = None if self.step is None else now_s + self.step.duration_s


@dataclass(frozen=True)
class Submit:
    time_s: float
    job: Job


@dataclass(frozen=True)
class Abort:
    time_s: float
    job_id: JobId


@dataclass
class Seen:
    """Everything a caller can see of a replica's life."""

    first_s: dict[JobId, float] = field(default_factory=dict)
    finished_s: dict[JobId, float] = field(default_factory=dict)
    finished: list[JobId] = field(default_factory=list)
    cached: dict[JobId, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    loads: list[tuple[int, int, float]] = field(default_factory=list)


def lived(replica: Timed, acts: Sequence[Submit | Abort], look: Callable[[Timed], None] = lambda replica: None) -> Seen:
    """Run a replica through these acts, ordered by time, and to the end of its work."""
    seen = Seen()
    for act in acts:
        while replica.next_s is not None and replica.next_s <= act.time_s:
            _advanced(replica, replica.next_s, seen)
            look(replica)
        seen.loads.append((replica.running, replica.waiting, replica.kv_used_fraction_at(act.time_s)))
        if isinstance(act, Submit):
            replica.submit(act.job, act.time_s)
        else:
            replica.abort(act.job_id, act.time_s)
        seen.loads.append((replica.running, replica.waiting, replica.kv_used_fraction_at(act.time_s)))
        look(replica)
    while replica.next_s is not None:
        _advanced(replica, replica.next_s, seen)
        look(replica)
    return seen


def _advanced(replica: Timed, now_s: float, seen: Seen) -> None:
    moment = replica.advance(now_s)
    seen.first_s |= dict.fromkeys(moment.first, now_s)
    seen.finished_s |= dict.fromkeys(moment.finished, now_s)
    seen.finished += moment.finished
    seen.cached |= moment.admitted
    seen.events += moment.events


def chained(letters: Sequence[object]) -> tuple[bytes, ...]:
    """Keys of blocks that hold these."""
    keys: list[bytes] = []
    for letter in letters:
        keys.append(hashlib.blake2b(repr(letter).encode(), digest_size=16, key=keys[-1] if keys else b"").digest())
    return tuple(keys)


@st.composite
def jobs(draw: st.DrawFn, number: int) -> Job:
    prompt, output = draw(st.integers(1, 30)), draw(st.integers(1, 30))
    full = (prompt + output) // BLOCK
    same = draw(st.integers(0, full))  # so many blocks are like everybody's, also those of the answer
    letters = [0] * same + draw(st.lists(st.integers(0, 2), min_size=full - same, max_size=full - same))
    keys = chained(letters)
    named = draw(st.sampled_from([full, full, full, full, prompt // BLOCK, 0]))
    return Job(number, prompt, output, keys[:named], reads_cache=draw(st.sampled_from([True] * 9 + [False])))


@st.composite
def lives(draw: st.DrawFn) -> list[Submit | Abort]:
    acts: list[Submit | Abort] = []
    now_s = 0.0
    for number in range(draw(st.integers(1, 16))):
        now_s += draw(st.sampled_from([0.0, 0.0, 0.00513, 0.0177, 0.0501, 0.1407, 0.61]))
        acts.append(Submit(now_s, draw(jobs(number))))
        if draw(st.integers(0, 5)) == 0:
            now_s += draw(st.sampled_from([0.0, 0.00313, 0.0407]))
            acts.append(Abort(now_s, draw(st.integers(0, number))))
    return acts
