"""The clock: a workload meets a policy, in virtual time, over replicas of the engine model and the router's own book.

The one rule: one heap, ordered by time and then by when an event was planned, so that two runs give identical bytes.
The policy is asked at arrivals only, and gets what the live router would give it. Requests that have ended are
forgotten; what became of them stands in columns. Not here: what a replica does (`timed`), what the router knows
(`belief`), and what the numbers mean (`results`).

A turn of a closed session (`Arrival.think_s`) is sent when the session's turn before it has ended and that long has
passed, and never before its own `time_s`: a workload gives there the earliest time it could be sent.
"""

import gc
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from policies.types import Choice, Policy, Replica, Request
from sim.arrivals import Arrival, Workload
from sim.belief import Book
from sim.errors import JobRefused, SimError
from sim.jobs import Job, JobId
from sim.outcome import Outcome
from sim.rows import Rows
from sim.setup import Setup as Setup
from sim.timed import TimedReplica

Progress = Callable[[int], None]
"""Told now and then how many requests have ended."""

_TOLD_EVERY: Final = 512
_NEVER: Final = float("nan")


def simulate(workload: Workload, policy: Policy, setup: Setup, *, progress: Progress | None = None) -> Outcome:
    """Run a workload to its end under one policy.

    Raises `SimError` when the workload's times go back, or the policy names a replica that was not offered.
    """
    run = _Run(workload, policy, setup, progress or (lambda _: None))
    with _no_garbage_collection():
        run.play()
    return run.outcome()


def _engines(setup: Setup, block_tokens: int) -> list[TimedReplica]:
    """Fresh replicas, their caches empty."""
    return [
        TimedReplica(
            f"r{place}",
            setup.profile,
            blocks=setup.blocks,
            block_tokens=block_tokens,
            max_num_seqs=setup.max_num_seqs,
            max_batched_tokens=setup.max_batched_tokens,
            record_events=setup.belief.source == "events",
            async_scheduling=setup.async_scheduling,
        )
        for place in range(setup.replicas)
    ]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The loop makes no cycles worth a search, and searching millions of live objects costs more than the loop."""
    was_on = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


class _Session:
    """A session: how many of its turns are on their way, and closed turns that wait for them."""

    __slots__ = ("ended_s", "under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = 0
        self.ended_s: float | None = None
        self.waiting: deque[Arrival] | None = None  # most sessions never make one wait


class _Flight:
    """One request between its dispatch and its end."""

    __slots__ = ("hittable", "keys", "row", "session", "told")

    def __init__(
        self, row: int, told: Request, keys: tuple[bytes, ...], hittable: int, session: _Session | None
    ) -> None:
        self.row = row
        self.told = told
        self.keys = keys
        self.hittable = hittable
        self.session = session


class _Run:
    """One run. Every entry of the heap is (time, order, what to do then, with what)."""

    def __init__(self, workload: Workload, policy: Policy, setup: Setup, progress: Progress) -> None:
        self._block_tokens = workload.block_tokens
        self._arrivals = iter(workload.arrivals)
        self._policy = policy
        self._progress = progress
        self._belief = setup.belief
        self._engines = _engines(setup, workload.block_tokens)
        self._book = Book(setup.belief, self._engines, workload.block_tokens, setup.seed)
        self._front_s = setup.profile.front_s
        self._place = {engine.name: place for place, engine in enumerate(self._engines)}
        self._due: list[float | None] = [None] * len(self._engines)
        self._heap: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._order = itertools.count()
        self._sessions: dict[str, _Session] = {}
        self._flights: dict[JobId, _Flight] = {}
        self._rows = Rows()
        self._reasons: dict[str, int] = {}
        self._ended = self._refused = 0

    def play(self) -> None:
        heap = self._heap
        self._pull(0.0)
        if heap and self._belief.report_every_s:
            self._report(heap[0][0], None)
        while heap:
            now_s, _, do, what = heapq.heappop(heap)
            do(now_s, what)
        self._progress(self._ended)

    def outcome(self) -> Outcome:
        return self._rows.outcome(
            replicas=len(self._engines),
            preemptions=sum(engine.counters.preemptions for engine in self._engines),
            duplicated_fraction=_duplicated_fraction(self._engines),
            refused=self._refused,
            reasons=self._reasons,
        )

    def _plan(self, time_s: float, do: Callable[[float, Any], None], what: object) -> None:
        heapq.heappush(self._heap, (time_s, next(self._order), do, what))

    # -- arrivals ----------------------------------------------------------------------------------------------------

    def _pull(self, now_s: float) -> None:
        """Plan the workload's next arrival."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            return
        if not arrival.time_s >= now_s:
            raise SimError(
                f"request {arrival.number} arrives at {arrival.time_s} s, after one at {now_s} s:"
                " sort the workload by time"
            )
        self._plan(arrival.time_s, self._arrived, arrival)

    def _arrived(self, now_s: float, arrival: Arrival) -> None:
        self._pull(now_s)
        if arrival.session is None:
            self._dispatch(now_s, arrival, None)
            return
        session = self._sessions.get(arrival.session)
        if session is None:
            session = self._sessions[arrival.session] = _Session()
        if arrival.think_s is not None and session.under_way:
            if session.waiting is None:
                session.waiting = deque()
            session.waiting.append(arrival)
        elif arrival.think_s is not None and session.ended_s is not None:
            self._think(now_s, arrival, session, session.ended_s + arrival.think_s)
        else:
            session.under_way += 1
            self._dispatch(now_s, arrival, session)

    def _think(self, now_s: float, arrival: Arrival, session: _Session, until_s: float) -> None:
        """Nothing of the session is on its way: its next turn comes when the user has thought."""
        session.under_way += 1
        due_s = max(now_s, until_s)
        self._plan(due_s, self._thought, (arrival, session))

    def _thought(self, now_s: float, turn: tuple[Arrival, _Session]) -> None:
        self._dispatch(now_s, *turn)

    def _turn_over(self, now_s: float, session: _Session) -> None:
        session.under_way -= 1
        session.ended_s = now_s
        if session.waiting and not session.under_way:
            turn = session.waiting.popleft()
            self._think(now_s, turn, session, now_s + (turn.think_s or 0.0))

    # -- one request -------------------------------------------------------------------------------------------------

    def _dispatch(self, now_s: float, arrival: Arrival, session: _Session | None) -> None:
        keys, cache = arrival.keys, self._engines[0].cache
        job = Job(arrival.number, arrival.prompt_tokens, arrival.output_tokens, keys, arrival.reads_cache)
        try:
            job.check_fits("of this fleet", cache.usable_blocks, self._block_tokens)
        except JobRefused:
            self._refused += 1
            if session is not None:
                self._turn_over(now_s, session)
            return
        hittable = (arrival.prompt_tokens - 1) // self._block_tokens if arrival.reads_cache else 0
        request = Request(
            str(arrival.number),
            arrival.route,
            arrival.model,
            arrival.tenant,
            arrival.user,
            arrival.session,
            arrival.prompt_tokens,
            None,
            keys[:hittable],
            self._block_tokens,
        )
        replicas = self._book.view(request, now_s)
        chosen = self._chosen(request, replicas)
        place = self._place[chosen.name]
        told = self._book.sent(request, chosen)
        self._flights[arrival.number] = _Flight(len(self._rows.number), told, keys, hittable, session)
        best = max([replica.matched_blocks for replica in replicas])
        self._enter(now_s, arrival, place, chosen.matched_blocks, best)
        if self._front_s:
            self._plan(now_s + self._front_s, self._reached, (place, job))
        else:
            self._reached(now_s, (place, job))

    def _reached(self, now_s: float, work: tuple[int, Job]) -> None:
        """The request is through the replica's front end."""
        place, job = work
        self._engines[place].submit(job, now_s)
        self._follow(place, now_s)

    def _chosen(self, request: Request, replicas: tuple[Replica, ...]) -> Replica:
        choice: Choice | str = self._policy.choose(request, replicas)
        name, reason = (choice, "") if isinstance(choice, str) else (choice.replica, choice.reason)
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        place = self._place.get(name)
        if place is None:
            raise SimError(f"the policy chose {name!r} for request {request.id}, which is no replica it was offered")
        return replicas[place]

    def _enter(self, now_s: float, arrival: Arrival, place: int, predicted_blocks: int, available_blocks: int) -> None:
        rows = self._rows
        rows.number.append(arrival.number)
        rows.replica.append(place)
        rows.place_of(arrival.tenant, arrival.route)
        rows.prompt.append(arrival.prompt_tokens)
        rows.output.append(arrival.output_tokens)
        rows.cached.append(0)
        rows.predicted.append(predicted_blocks * self._block_tokens)
        rows.available.append(available_blocks * self._block_tokens)
        rows.queue.append(self._engines[place].waiting)
        rows.sent_s.append(now_s)
        rows.first_s.append(_NEVER)
        rows.end_s.append(_NEVER)

    # -- replicas ----------------------------------------------------------------------------------------------------

    def _follow(self, place: int, now_s: float) -> None:
        """Be there when the replica's next step ends; an entry of the heap that no longer holds is passed over."""
        next_s = self._engines[place].next_s
        if next_s != self._due[place]:
            self._due[place] = next_s
            if next_s is not None:
                heapq.heappush(self._heap, (next_s, next(self._order), self._stepped, place))
        if not self._belief.report_every_s:
            self._book.reported(place, now_s)

    def _stepped(self, now_s: float, place: int) -> None:
        if self._due[place] != now_s:
            return
        self._due[place] = None
        flights, rows, book = self._flights, self._rows, self._book
        moment = self._engines[place].advance(now_s)
        for number, cached_tokens in moment.admitted.items():
            rows.cached[flights[number].row] = cached_tokens
        for number in moment.first:
            flight = flights[number]
            rows.first_s[flight.row] = now_s
            book.first_token(flight.told, place)
        for number in moment.finished:
            flight = flights.pop(number)
            rows.end_s[flight.row] = now_s
            book.done(flight.told, flight.keys, flight.hittable, rows.cached[flight.row])
            self._ended += 1
            if not self._ended % _TOLD_EVERY:
                self._progress(self._ended)
            if flight.session is not None:
                self._turn_over(now_s, flight.session)
        if moment.events and not book.lost(place):
            self._plan(now_s + self._belief.lag_of(place), self._tell, (place, moment.events))
        self._follow(place, now_s)

    # -- what the router learns later ----------------------------------------------------------------------------------

    def _tell(self, _: float, message: tuple[int, Any]) -> None:
        self._book.told(*message)

    def _report(self, now_s: float, _: object) -> None:
        """Every replica reports, for as long as anything is still to happen."""
        for place in range(len(self._engines)):
            self._book.reported(place, now_s)
        if self._heap:
            self._plan(now_s + self._belief.report_every_s, self._report, None)


def _duplicated_fraction(engines: list[TimedReplica]) -> float | None:
    held = sum(engine.cache.cached_keys for engine in engines)
    return None if not held else 1 - len(set().union(*(engine.cache.keys() for engine in engines))) / held
