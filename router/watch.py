"""What the page shows, as values: the fleet now, hit rates over time, the last decisions and why.

The one rule: the page counts nothing of its own; every number is a sample of the families that `/metrics` prints, or a
sum that `/hits` tells, so they can't differ. A decision is shown without text, user or session. Not here: sockets and
clocks (`router.page`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final

from policies.types import Replica
from router.families import Built
from router.health import ReplicaState
from router.kv_events import KvState
from router.outcome import Outcome
from router.placing import Placed

MOST_SHOWN: Final = 24  # routes, and tenants, with most prompt tokens; the rest are in /hits
MOST_DECISIONS: Final = 50
_CANDIDATES: Final = 8
_HISTORY: Final = 360

Json = dict[str, Any]
Labels = Mapping[str, str]
Sums = dict[str, list[int]]
"""By name: tokens of prompts, available, predicted, of prompts whose replica told what it found, delivered."""


class Samples:
    """The samples of one scrape by name."""

    __slots__ = ("_found",)

    def __init__(self, families: Iterable[Built]) -> None:
        self._found: dict[str, list[tuple[Labels, float]]] = {}
        for family in families:
            for sample in family.samples:
                self._found.setdefault(sample.name, []).append((sample.labels, sample.value))

    def of(self, name: str) -> list[tuple[Labels, float]]:
        return self._found.get(name, [])

    def total(self, name: str, **labels: str) -> float:
        """The sum over all samples with these labels; 0 when there are none, as for every counter."""
        wanted = labels.items()
        return sum(value for held, value in self.of(name) if wanted <= held.items())

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample with these labels; None when there is none."""
        wanted = labels.items()
        return next((value for held, value in self.of(name) if wanted <= held.items()), None)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the values of a label."""
        found: dict[str, float] = {}
        for labels, value in self.of(name):
            found[labels[label]] = found.get(labels[label], 0) + value
        return found


def largest(sums: dict[str, Sums]) -> dict[str, Sums]:
    """Of routes, tenants and replicas those with most prompt tokens."""
    return {kind: _largest(found) for kind, found in sums.items()}


def _largest(sums: Sums) -> Sums:
    return dict(nsmallest(MOST_SHOWN, sums.items(), key=lambda pair: (-pair[1][0], pair[0])))


class History:
    """Token sums at the last moments somebody took them: half an hour at one every five seconds."""

    __slots__ = ("_points",)

    def __init__(self, most: int = _HISTORY) -> None:
        self._points: deque[Json] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._points)

    def took(self, time_s: float, sums: dict[str, Sums]) -> None:
        self._points.append({"time_s": time_s, "hits": sums})

    def points(self) -> list[Json]:
        """Oldest first."""
        return list(self._points)


class Decisions:
    """The last requests that ended, kept as they are until somebody wants to read them."""

    __slots__ = ("_clock", "_costs", "_last", "_shown")

    def __init__(self, clock: Callable[[], float], costs: Callable[[Placed], Mapping[str, float]]) -> None:
        """`clock` gives seconds since 1970; `costs` what the policy says each replica would have cost."""
        self._clock = clock
        self._costs = costs
        self._last: deque[tuple[float, Placed, Outcome]] = deque(maxlen=MOST_DECISIONS)
        self._shown: dict[str, Json] = {}

    def __len__(self) -> int:
        return len(self._last)

    def ended(self, placed: Placed, outcome: Outcome) -> None:
        self._last.append((self._clock(), placed, outcome))

    def forget(self) -> None:
        self._last.clear()
        self._shown.clear()

    def rows(self) -> list[Json]:
        """Newest first; each is put into words once."""
        earlier, self._shown = self._shown, {}
        for time_s, placed, outcome in reversed(self._last):
            name = placed.request.id
            self._shown[name] = earlier.get(name) or decision(time_s, placed, outcome, self._costs(placed))
        return list(self._shown.values())


def decision(time_s: float, placed: Placed, outcome: Outcome, costs: Mapping[str, float]) -> Json:
    """One decision with why: numbers, names and constant words."""
    request, choice = placed.request, placed.choice
    ranked = sorted(placed.view, key=lambda one: (one.name != choice.replica, -one.matched_blocks, one.in_flight))
    return {
        "id": request.id,
        "time_s": time_s,
        "route": request.route,
        "model": request.model,
        "tenant": request.tenant,
        "replica": choice.replica,
        "reason": choice.reason,
        "why": why(placed),
        "prompt_tokens": outcome.prompt_tokens,
        "available_tokens": outcome.available_tokens,
        "predicted_tokens": outcome.predicted_tokens,
        "delivered_tokens": outcome.delivered_tokens,
        "basis": outcome.basis,
        "status": outcome.status,
        "outcome": outcome.outcome,
        "ttft_s": outcome.ttft_s,
        "duration_s": outcome.duration_s,
        "retries": outcome.retries,
        "candidates": [
            {
                "name": one.name,
                "matched_tokens": one.matched_blocks * request.block_tokens,
                "in_flight": one.in_flight,
                "pending_prefill_tokens": one.pending_prefill_tokens,
                "cost_tokens": costs.get(one.name),
            }
            for one in ranked[:_CANDIDATES]
        ],
        "more_candidates": max(0, len(ranked) - _CANDIDATES),
    }


def why(placed: Placed) -> str:
    """A sentence on what the chosen replica had, beside the one that had most of the prompt."""
    chosen, per_block = placed.chosen, placed.request.block_tokens
    if len(placed.view) == 1:
        return "the only replica that could be chosen"
    best = max(placed.view, key=lambda one: (one.matched_blocks, one.name == chosen.name))
    if not best.matched_blocks:
        return f"no replica is known to have any of the prompt; {_busy(chosen)} here"
    if best.matched_blocks == chosen.matched_blocks:
        alike = sum(one.matched_blocks == best.matched_blocks for one in placed.view)
        told = f"{best.matched_blocks * per_block:,} tokens are probably cached here"
        return f"{told}, as on {alike - 1} more; {_busy(chosen)} here" if alike > 1 else f"{told}, more than elsewhere"
    lost = (best.matched_blocks - chosen.matched_blocks) * per_block
    return f"{lost:,} more tokens are cached on {best.name}, but {_busy(best)} there; {_busy(chosen)} here"


def _busy(replica: Replica) -> str:
    return f"{replica.in_flight:,} in flight and {replica.pending_prefill_tokens:,} tokens waiting"


def replica_row(state: ReplicaState, events: KvState | None, samples: Samples, block_tokens: int) -> Json:
    """One replica; None where something is unknown."""
    name, engine = state.name, state.engine
    capacity = None
    if engine is not None and engine.usable_blocks is not None:
        capacity = engine.usable_blocks * (engine.block_tokens or block_tokens) // block_tokens
    return {
        "name": name,
        "url": state.url,
        "state": state.state,
        "reason": state.reason,
        "usable": state.usable,
        "restarts": state.restarts,
        "failures": samples.total("router_replica_failures_total", replica=name),
        "chosen": samples.total("router_choices_total", replica=name),
        "in_flight": samples.value("router_in_flight", replica=name),
        "pending_prefill_tokens": samples.value("router_pending_prefill_tokens", replica=name),
        "running": samples.value("router_replica_running", replica=name),
        "waiting": samples.value("router_replica_waiting", replica=name),
        "kv_used_fraction": samples.value("router_replica_kv_used_fraction", replica=name),
        "held_blocks": samples.value("router_held_blocks", replica=name),
        "capacity_blocks": capacity,
        "standing": None if events is None else events.standing.word,
        "standing_reason": None if events is None else events.standing.degraded or events.standing.reason,
        "degraded": events is not None and bool(events.standing.degraded),
    }


def snapshot(
    *,
    time_s: float,
    samples: Samples,
    sums: dict[str, Sums],
    states: Iterable[ReplicaState],
    events: Iterable[KvState],
    decisions: list[Json],
    block_tokens: int,
) -> Json:
    """What all watchers get at one moment."""
    known = {one.name: one for one in events}
    return {
        "time_s": time_s,
        "replicas": [replica_row(state, known.get(state.name), samples, block_tokens) for state in states],
        "requests": samples.total("router_requests_total"),
        "refused": samples.total("router_requests_total", outcome="refused"),
        "retries": samples.total("router_retries_total"),
        "policy_failures": samples.total("router_policy_failures_total"),
        "hits": sums,
        "losses": samples.by("router_lost_tokens_total", "reason"),
        "shadow": shadow(samples),
        "decisions": decisions,
    }


def shadow(samples: Samples) -> Json | None:
    """What the second policy would have done; None when there is none."""
    agreed = samples.by("router_shadow_choices_total", "agrees")
    if not agreed:
        return None
    tokens = samples.by("router_shadow_tokens_total", "policy")
    failed = samples.total("router_shadow_failures_total")
    return {"agreed": agreed.get("yes", 0), "differed": agreed.get("no", 0), "failed": failed, "tokens": tokens}
