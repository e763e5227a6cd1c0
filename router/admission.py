"""Holds requests back while every replica that could take them has enough, and lets them go in order.

The order is the body's `priority` (vLLM's: lower is earlier), then the tenants' turns where those are wanted, then
arrival; requests of different models wait apart.
What would come too late for its client is refused at once where that can be told, and when its time is over. The one
rule: the queue is bounded in requests and in tokens, and a request that leaves it, however it does, is no longer
counted. Without a limit on replicas there is no queue and none of this runs. Not here: choosing (`placing`).
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, Final

from policies.fairness import DeficitRounds
from policies.types import Replica, Request
from policies.values import Fixed
from router.errors import QueueFull, WaitedTooLong
from router.families import Built, gauge
from router.http.messages import Call
from router.sections import Admission as Rules

View = Callable[[Request], tuple[Replica, ...]]

PACE_S: Final = 20.0
"""About the time over which the queue's pace is averaged."""
FEWEST: Final = 3
"""So many must have left the queue before its pace is known."""


class Room(Fixed, frozen=True):
    """What one replica may have at a time."""

    max_pending_tokens: int | None
    max_in_flight: int | None

    def of(self, request: Request, view: tuple[Replica, ...]) -> tuple[Replica, ...]:
        """Those that have room for the request. One that has nothing to do has room for any."""
        return tuple(replica for replica in view if self._fits(request, replica))

    def _fits(self, request: Request, replica: Replica) -> bool:
        if self.max_in_flight is not None and replica.in_flight >= self.max_in_flight:
            return False
        if self.max_pending_tokens is None or not replica.pending_prefill_tokens:
            return True
        uncached = max(0, request.prompt_tokens - replica.matched_blocks * request.block_tokens)
        return replica.pending_prefill_tokens + uncached <= self.max_pending_tokens


class Turn(Fixed, frozen=True):
    """What a request says of its own urgency."""

    priority: int
    wait_s: float
    """How long it may queue."""


class _Waiting:
    """One request in the queue."""

    __slots__ = ("done", "key", "request")

    def __init__(self, request: Request, key: tuple[int, int, int], done: "asyncio.Future[None]") -> None:
        self.request = request
        self.key = key
        self.done = done

    def __lt__(self, other: "_Waiting") -> bool:
        return self.key < other.key


class Admission:
    """The queue before the replicas."""

    def __init__(self, rules: Rules, view: View, clock: Callable[[], float]) -> None:
        """`view` gives the replicas a request may go to."""
        self.room = Room(rules.max_pending_tokens, rules.max_in_flight)
        self._rules = rules
        self._view = view
        self._clock = clock
        self._header = rules.timeout_header.lower().encode()
        self._queues: dict[str, list[_Waiting]] = {}
        self._going: set[str] = set()
        self._count = 0
        self._pace = Pace()
        self._rounds: dict[str, DeficitRounds] = {}
        self.requests = 0
        """Requests that wait."""
        self.tokens = 0
        """Their prompts' tokens."""

    def __repr__(self) -> str:
        return f"<Admission {self.requests} requests of {self.tokens} tokens wait>"

    def turn(self, call: Call, body: Mapping[str, Any] | None) -> Turn:
        """Read how urgent a call is; what makes no sense there is passed over."""
        priority = body.get("priority") if body is not None else None
        wait_s, told = self._rules.max_wait_s, call.header(self._header)
        if told is not None:
            with contextlib.suppress(ValueError):
                told_s = float(told)
                wait_s = min(wait_s, max(0.0, told_s)) if math.isfinite(told_s) else wait_s
        return Turn(priority if type(priority) is int else 0, wait_s)

    def collect(self) -> Iterator[Built]:
        yield gauge("router_queue_requests", [((), self.requests)])
        yield gauge("router_queue_tokens", [((), self.tokens)])

    async def through(self, request: Request, turn: Turn, relayed: Callable[[], Awaitable[None]]) -> None:
        """Relay a request in its turn.

        Raises `QueueFull` when it would not fit in the queue or not come out in time, `WaitedTooLong` when it did not.
        """
        await self._admitted(request, turn)
        try:
            await relayed()
        finally:
            self.freed()

    def freed(self) -> None:
        """Something ended, began to be answered, or changed: there may be room. Cheap while nobody waits."""
        if self.requests:
            for model in list(self._queues):
                self._pump(model)

    async def _admitted(self, request: Request, turn: Turn) -> None:
        """Return when a replica has room for the request: at once, or in its turn."""
        model = request.model
        self._count += 1
        if model not in self._queues and model not in self._going and self._has_room(request):
            return
        key = (turn.priority, self._round(request), self._count)
        waiting = _Waiting(request, key, asyncio.get_running_loop().create_future())
        try:
            self._check_bounds(waiting, turn)
        except QueueFull:
            if model not in self._queues:
                self._rounds.pop(model, None)
            raise
        heappush(self._queues.setdefault(model, []), waiting)
        self._pace.waits(self._clock(), anew=not self.requests)
        self.requests += 1
        self.tokens += request.prompt_tokens
        self._pump(model)  # it may be the first by its priority, and smaller than the one that was
        try:
            async with asyncio.timeout(turn.wait_s):
                await waiting.done
        except TimeoutError:
            raise WaitedTooLong(
                f"no replica had room within {turn.wait_s:g} s; try again later", retry_after_s=self._retry_after_s()
            ) from None
        finally:
            self._gone(waiting)

    def _pump(self, model: str) -> None:
        """Let go the first of a queue. The next one may follow when this one was sent: only then is it counted."""
        queue = self._queues.get(model)
        if not queue or model in self._going or queue[0].done.done() or not self._has_room(queue[0].request):
            return  # a first one that is done is about to leave, and tells of it
        waiting = heappop(queue)
        self._going.add(model)
        if model in self._rounds:
            self._rounds[model].served(waiting.key[1])
        if not queue:
            self._emptied(model)
        waiting.done.set_result(None)

    def _gone(self, waiting: _Waiting) -> None:
        """Out of the queue, for whatever reason."""
        model = waiting.request.model
        self.requests -= 1
        self.tokens -= waiting.request.prompt_tokens
        if waiting.done.done() and not waiting.done.cancelled():
            self._going.discard(model)
            self._pace.left(waiting.request.prompt_tokens, self._clock())
        else:
            queue = self._queues[model]
            queue.remove(waiting)
            heapify(queue)
            if not queue:
                self._emptied(model)
        asyncio.get_running_loop().call_soon(self.freed)  # once this one has been sent, or has gone its way

    def _emptied(self, model: str) -> None:
        del self._queues[model]
        self._rounds.pop(model, None)

    def _round(self, request: Request) -> int:
        """Whose turn it is among tenants of one priority; always 0 where that is not wanted."""
        quantum_tokens = self._rules.fair_quantum_tokens
        if quantum_tokens is None:
            return 0
        matched = max((replica.matched_blocks for replica in self._view(request)), default=0)
        uncached_tokens = max(0, request.prompt_tokens - matched * request.block_tokens)
        rounds = self._rounds.setdefault(request.model, DeficitRounds(quantum_tokens))
        return rounds.of(request.tenant, uncached_tokens)

    def _has_room(self, request: Request) -> bool:
        """Whether there is room, or nobody at all, which placing the request then says."""
        view = self._view(request)
        return not view or bool(self.room.of(request, view))

    def _check_bounds(self, waiting: _Waiting, turn: Turn) -> None:
        rules, tokens = self._rules, self.tokens + waiting.request.prompt_tokens
        if self.requests >= rules.max_queue_requests or (self.requests and tokens > rules.max_queue_tokens):
            raise QueueFull(
                f"{self.requests} requests of {self.tokens} tokens wait already; try again later",
                retry_after_s=self._retry_after_s(),
            )
        queue = self._queues.get(waiting.request.model, ())
        ahead_tokens = sum(other.request.prompt_tokens for other in queue if other < waiting)
        expected_s = self._pace.needed_s(ahead_tokens, self._clock())
        if turn.wait_s <= 0 or (expected_s is not None and expected_s > turn.wait_s):
            told = "" if expected_s is None else f" and its turn would come in about {expected_s:.1f} s"
            raise QueueFull(
                f"every replica has as much as it may{told}, but this request waits {turn.wait_s:g} s at most",
                retry_after_s=self._retry_after_s(),
            )

    def _retry_after_s(self) -> int:
        """When what waits now will have gone; 1 to 30 s."""
        needed_s = self._pace.needed_s(self.tokens, self._clock())
        return 1 if needed_s is None else max(1, min(30, math.ceil(needed_s)))


def admission_of(rules: Rules, view: View, clock: Callable[[], float]) -> Admission | None:
    """The queue, where replicas have a limit."""
    limited = rules.max_pending_tokens is not None or rules.max_in_flight is not None
    return Admission(rules, view, clock) if limited else None


class Pace:
    """How fast the queue moves, as long as somebody waits: a queue that nobody needed says nothing."""

    __slots__ = ("_left", "_since_s", "_tokens")

    def __init__(self) -> None:
        self._since_s = 0.0
        self._tokens = 0.0
        self._left = 0

    def waits(self, now_s: float, *, anew: bool) -> None:
        if anew:
            self._since_s, self._tokens, self._left = now_s, 0.0, 0

    def left(self, tokens: int, now_s: float) -> None:
        """A request left the queue for a replica."""
        self._left += 1
        self._tokens += tokens
        taken_s = now_s - self._since_s
        if taken_s > PACE_S:  # older times count ever less
            self._since_s, self._tokens = now_s - taken_s / 2, self._tokens / 2

    def needed_s(self, tokens: int, now_s: float) -> float | None:
        """Seconds for so many tokens; None while too few have left to tell."""
        if self._left < FEWEST or not self._tokens:
            return None
        return tokens * (now_s - self._since_s) / self._tokens
