"""What the router counts, and how Prometheus reads it.

The one rule: a label's values come from a closed set (known routes, served models, configured replicas, else `other`),
so no client can make the series grow. Counting is a few additions on plain numbers; families are built when somebody
scrapes. Not here: what a replica reports of itself (`engine_metrics`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from policies.fleet import Fleet
from router import __version__
from router.core import CORE
from router.families import DECISION_BOUNDS_S, Built, Histogram, Labels, added, counter, gauge, histograms
from router.families import FAMILIES as FAMILIES
from router.health import Watcher
from router.hysteresis import CLOSED, OPEN, STARTING, TRIAL
from router.kv_events import KvEvents
from router.kv_standing import WORDS
from router.outcome import Outcome

_LABEL_VALUES: Final = 256  # distinct models, and distinct reasons, before the rest are "other"
OTHER: Final = "other"


_TOKENS: Final = ("prompt", "available", "predicted", "delivered", "output")
_STATES: Final = (STARTING, OPEN, TRIAL, CLOSED)


_Key = tuple[str, str, str, str, str, str, str, str]
"""Of finished requests: route, model, replica, status, outcome, basis, whether cached tokens were told, reason."""


@dataclass(slots=True)
class _Row:
    """Sums over the requests that are alike in everything a label tells."""

    durations: Histogram
    """Shared by all rows of a route."""
    ttfts: Histogram
    """Shared by all rows of a route and a replica."""
    requests: int = 0
    retries: int = 0
    prompt: int = 0
    available: int = 0
    predicted: int = 0
    delivered: int = 0
    output: int = 0


@dataclass(slots=True)
class _Counts:
    """Everything that only grows."""

    rows: dict[_Key, _Row] = field(default_factory=dict)
    refused: dict[Labels, int] = field(default_factory=dict)
    refusals: dict[Labels, int] = field(default_factory=dict)
    durations: dict[Labels, Histogram] = field(default_factory=dict)
    ttfts: dict[Labels, Histogram] = field(default_factory=dict)
    decisions: Histogram = field(default_factory=lambda: Histogram(DECISION_BOUNDS_S))
    policy_failures: int = 0
    retries_denied: int = 0

    def row(self, key: _Key) -> _Row:
        durations = self.durations.setdefault((key[0],), Histogram())
        return self.rows.setdefault(key, _Row(durations, self.ttfts.setdefault((key[0], key[2]), Histogram())))

    def sums(self, word: str, *places: int) -> list[tuple[Labels, float]]:
        """One figure of all rows by some of their labels, given by their places in the key."""
        sums: dict[Labels, float] = {}
        for key, row in self.rows.items():
            labels = tuple([key[place] for place in places])
            sums[labels] = sums.get(labels, 0) + getattr(row, word)
        return list(sums.items())


class Metrics(Collector):
    """Counts outcomes, and reads fleet and watcher when scraped."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        watcher: Watcher,
        events: KvEvents,
        routes: Iterable[str],
        others: Sequence[Callable[[], Iterator[Built]]] = (),
    ) -> None:
        """`others` build the families of what is counted elsewhere."""
        self._others = others
        self._fleet = fleet
        self._watcher = watcher
        self._events = events
        self._routes = {route: route for route in routes}
        self._models: dict[str, str] = {"": ""}
        self._reasons: dict[str, str] = {}
        self._statuses: dict[int, str] = {}
        self._counts = _Counts()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def __repr__(self) -> str:
        return f"<Metrics {sum(row.requests for row in self._counts.rows.values())} requests>"

    # -- facts -----------------------------------------------------------------------------------------------------

    def answered(self, outcome: Outcome) -> None:
        """Book a finished request; a few µs."""
        delivered = outcome.delivered_tokens
        key = (
            self._routes.get(outcome.route, OTHER),
            self._models.get(outcome.model) or self._model(outcome.model),
            outcome.replica,
            self._statuses.get(outcome.status) or self._status(outcome.status),
            outcome.outcome,
            outcome.basis,
            "no" if delivered is None else "yes",
            self._reasons.get(outcome.reason) or self._reason(outcome.reason),
        )
        row = self._counts.rows.get(key) or self._counts.row(key)
        row.requests += 1
        row.retries += outcome.retries
        row.prompt += outcome.prompt_tokens
        row.available += outcome.available_tokens
        row.predicted += outcome.predicted_tokens
        if delivered:
            row.delivered += delivered
        if outcome.output_tokens:
            row.output += outcome.output_tokens
        row.durations.observed(outcome.duration_s)
        if outcome.ttft_s is not None:
            row.ttfts.observed(outcome.ttft_s)

    def refused(self, path: str, status: int, code: str) -> None:
        """Book a request the router answered with an error of its own; `code` is a constant of the error's class."""
        route = self._routes.get(path, OTHER)
        added(self._counts.refused, (route, "", "", str(status), "refused"), 1)
        added(self._counts.refusals, (route, code), 1)

    def decided(self, seconds: float) -> None:
        """The router's own work for one request took this long."""
        self._counts.decisions.observed(seconds)

    def policy_failed(self) -> None:
        self._counts.policy_failures += 1

    def retry_denied(self) -> None:
        """A failure went to the client since retries have had their share of the traffic."""
        self._counts.retries_denied += 1

    def forgotten(self, replica: str) -> None:
        """The replica has left for good: what was counted of it goes on as `other`, so that series don't pile up."""
        counts = self._counts
        for key in [key for key in counts.rows if key[2] == replica]:
            gone = counts.rows.pop(key)
            kept = counts.row((*key[:2], OTHER, *key[3:]))
            for word in ("requests", "retries", *_TOKENS):
                setattr(kept, word, getattr(kept, word) + getattr(gone, word))
        for labels in [labels for labels in counts.ttfts if labels[1] == replica]:
            del counts.ttfts[labels]

    def also(self, collector: Collector) -> None:
        """Expose what `collector` builds when somebody scrapes; the page does without it."""
        self._registry.register(collector)

    def exposition(self) -> bytes:
        """The answer to `GET /metrics`."""
        return generate_latest(self._registry)

    async def scraped(self) -> bytes:
        """The same, a family at a time and put into text beside the loop, which requests wait for."""
        families = []
        for family in self._registry.collect():
            families.append(family)
            await asyncio.sleep(0)  # whoever collects has looked at all that may change before it yields
        return await asyncio.to_thread(generate_latest, _Built(families))

    # -- closed sets -----------------------------------------------------------------------------------------------

    def _model(self, model: str) -> str:
        """A model's label: itself once a replica has served it, else `other`."""
        if model in self._models:
            return self._models[model]
        if len(self._models) < _LABEL_VALUES and model in self._fleet.models():
            self._models[model] = model
            return model
        return OTHER

    def _reason(self, reason: str) -> str:
        """A plug-in may give any text as its reason; only so many become labels."""
        if len(self._reasons) >= _LABEL_VALUES:
            return OTHER
        return self._reasons.setdefault(reason, reason[:64])

    def _status(self, status: int) -> str:
        return self._statuses.setdefault(status, str(status)) if 100 <= status < 600 else OTHER

    # -- scraping --------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Built]:
        counts = self._counts
        yield counter("router_requests_total", [*counts.sums("requests", 0, 1, 2, 3, 4), *counts.refused.items()])
        yield counter("router_choices_total", counts.sums("requests", 2, 7))
        yield counter("router_refusals_total", counts.refusals.items())
        yield counter("router_retries_total", _some(counts.sums("retries", 0)))
        yield counter("router_retries_denied_total", [((), counts.retries_denied)])
        yield counter("router_policy_failures_total", [((), counts.policy_failures)])
        yield histograms("router_request_duration_seconds", counts.durations.items())
        yield histograms(
            "router_ttft_seconds", [(key, ttfts) for key, ttfts in counts.ttfts.items() if any(ttfts.counts)]
        )
        yield histograms("router_decision_seconds", [((), counts.decisions)])
        for word in _TOKENS[:-1]:
            yield counter(f"router_{word}_tokens_total", counts.sums(word, 0, 1, 2, 5, 6))
        yield counter("router_output_tokens_total", _some(counts.sums("output", 0, 1, 2)))
        yield from self._of_the_fleet()
        yield from self._of_the_replicas()
        yield from self._of_the_events()
        for other in self._others:
            yield from other()
        yield gauge("router_build_info", [((__version__, CORE), 1)])

    def _of_the_fleet(self) -> Iterator[Built]:
        loads = {(name,): self._fleet.load(name) for name in self._fleet.replicas()}
        held = [(key, self._fleet.held_blocks(key[0])) for key in loads]
        sizes = [(key, self._fleet.effective_blocks(key[0])) for key in loads]
        yield gauge("router_in_flight", [(key, load[0]) for key, load in loads.items()])
        yield gauge("router_pending_prefill_tokens", [(key, load[1]) for key, load in loads.items()])
        yield gauge("router_held_blocks", held)
        yield gauge("router_effective_blocks", [(key, size) for key, size in sizes if size is not None])
        yield gauge("router_index_runs", [((), self._fleet.index_runs)])

    def _of_the_replicas(self) -> Iterator[Built]:
        states = self._watcher.states()
        yield gauge("router_replica_up", [((state.name,), int(state.usable)) for state in states])
        rows = [((state.name, word), int(word == state.state)) for state in states for word in _STATES]
        yield gauge("router_replica_state", rows)
        failures = [((state.name, kind), count) for state in states for kind, count in state.failures.items()]
        yield counter("router_replica_failures_total", failures)
        yield counter("router_replica_restarts_total", [((state.name,), state.restarts) for state in states])
        engines = [((state.name,), state.engine) for state in states if state.engine is not None]
        for word in ("running", "waiting", "kv_used_fraction"):
            known = [(key, value) for key, engine in engines if (value := getattr(engine, word)) is not None]
            yield gauge(f"router_replica_{word}", known)

    def _of_the_events(self) -> Iterator[Built]:
        states = self._events.states()
        rows = [((state.name, word.lower()), int(word == state.standing.word)) for state in states for word in WORDS]
        yield gauge("router_kv_standing", rows)
        yield gauge("router_kv_degraded", [((state.name,), int(bool(state.standing.degraded))) for state in states])
        yield counter("router_kv_batches_total", [((state.name,), state.batches) for state in states])
        for word in ("blocks", "faults"):
            counts = [((state.name, kind), n) for state in states for kind, n in getattr(state, word).items()]
            yield counter(f"router_kv_{word}_total", counts)


class _Built(CollectorRegistry):
    """Families that are built already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _some(sums: Iterable[tuple[Labels, float]]) -> list[tuple[Labels, float]]:
    """Without what is 0: a series of nothing but that says nothing."""
    return [(key, value) for key, value in sums if value]
