"""The metrics by name: kind, labels and meaning of each, and how numbers become Prometheus families.

The one rule: a metric that is not in `FAMILIES` can't be built. Not here: the counting (`metrics`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name on the wire, its kind, its labels and what it means."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


_TOKENS = ("route", "model", "replica", "basis", "reported")

FAMILIES: tuple[Family, ...] = (
    Family(
        "router_requests_total",
        "counter",
        ("route", "model", "replica", "status", "outcome"),
        "Requests answered, by how they ended; `replica` is empty when the router answered itself",
    ),
    Family("router_choices_total", "counter", ("replica", "reason"), "Requests placed, by the policy's reason"),
    Family(
        "router_refusals_total", "counter", ("route", "code"), "Requests the router answered with an error of its own"
    ),
    Family("router_retries_total", "counter", ("route",), "Attempts that failed before the first byte and moved on"),
    Family(
        "router_retries_denied_total",
        "counter",
        (),
        "Failures relayed because retries had used up their share of traffic",
    ),
    Family("router_policy_failures_total", "counter", (), "Choices the policy failed to make; these went by load"),
    Family(
        "router_request_duration_seconds", "histogram", ("route",), "From the request's last byte to its reply's last"
    ),
    Family(
        "router_ttft_seconds", "histogram", ("route", "replica"), "From the request's last byte to its reply's first"
    ),
    Family(
        "router_decision_seconds", "histogram", (), "The router's own work before a request is sent: tokens to choice"
    ),
    Family(
        "router_prompt_tokens_total",
        "counter",
        _TOKENS,
        'Prompt tokens of finished requests; `reported="yes"` where the replica said how many were cached',
    ),
    Family(
        "router_available_tokens_total",
        "counter",
        _TOKENS,
        "Prompt tokens believed cached on the best usable replica; short of the prompt: the workload did not repeat",
    ),
    Family(
        "router_predicted_tokens_total",
        "counter",
        _TOKENS,
        "Prompt tokens believed cached on the chosen replica; short of available: given up for load",
    ),
    Family(
        "router_delivered_tokens_total",
        "counter",
        _TOKENS,
        'Prompt tokens the replica reported as cached; short of predicted where reported="yes": the index was wrong',
    ),
    Family(
        "router_lost_tokens_total",
        "counter",
        ("reason", "route", "tenant", "replica"),
        "Prompt tokens not found cached, by why: workload, load, routing, stale; and unreadable, which could not be",
    ),
    Family(
        "router_unpredicted_tokens_total",
        "counter",
        ("route", "tenant", "replica"),
        "Prompt tokens found cached that were not predicted: answers, or another router's prompts",
    ),
    Family(
        "router_hit_requests_total",
        "counter",
        ("route", "tenant", "replica"),
        "Requests answered whose prompts were read; `route` is what `route_by` says",
    ),
    Family(
        "router_hit_tokens_total",
        "counter",
        ("route", "tenant", "replica", "kind"),
        "Tokens of those: prompt, available, predicted, delivered, and reported: of prompts whose replica told what was"
        " cached, the whole that delivered is a part of",
    ),
    Family(
        "router_token_mismatch_total",
        "counter",
        ("model", "replica"),
        "Requests whose prompt tokens the replica counted otherwise than the router: its predictions can't be trusted",
    ),
    Family(
        "router_effective_blocks",
        "gauge",
        ("replica",),
        "Blocks that stay cached on the replica, stated and fitted by what it delivered",
    ),
    Family(
        "router_output_tokens_total", "counter", ("route", "model", "replica"), "Generated tokens, as replicas reported"
    ),
    Family("router_in_flight", "gauge", ("replica",), "Requests sent and not finished"),
    Family(
        "router_pending_prefill_tokens", "gauge", ("replica",), "Uncached prompt tokens that wait for a first token"
    ),
    Family("router_held_blocks", "gauge", ("replica",), "Blocks the index believes the replica holds"),
    Family("router_queue_requests", "gauge", (), "Requests that wait for a replica with room, where that is limited"),
    Family("router_queue_tokens", "gauge", (), "Prompt tokens of the requests that wait for a replica with room"),
    Family("router_index_runs", "gauge", (), "Runs of blocks the index keeps for all replicas together"),
    Family("router_replica_up", "gauge", ("replica",), "1 while the replica may be chosen"),
    Family(
        "router_replica_state",
        "gauge",
        ("replica", "state"),
        "1 for the replica's state: starting, open, trial, closed",
    ),
    Family("router_replica_failures_total", "counter", ("replica", "kind"), "Failed requests and cut replies by kind"),
    Family("router_replica_restarts_total", "counter", ("replica",), "Restarts seen: the replica's cache was emptied"),
    Family("router_replica_running", "gauge", ("replica",), "Requests in the engine's batch, as it reports"),
    Family("router_replica_waiting", "gauge", ("replica",), "Requests in the engine's queue, as it reports"),
    Family(
        "router_replica_kv_used_fraction", "gauge", ("replica",), "Share of KV blocks pinned, as the engine reports"
    ),
    Family(
        "router_kv_standing",
        "gauge",
        ("replica", "standing"),
        "1 for how well the replica's cache is known: exact or alias by its KV events, approximate without them",
    ),
    Family("router_kv_degraded", "gauge", ("replica",), "1 while KV events are missing and could not be had by replay"),
    Family("router_kv_batches_total", "counter", ("replica",), "Batches of KV events taken"),
    Family("router_kv_blocks_total", "counter", ("replica", "kind"), "Blocks KV events named, by what became of them"),
    Family(
        "router_kv_faults_total",
        "counter",
        ("replica", "kind"),
        "What was wrong with KV events: batches, events, who sends them",
    ),
    Family("router_tenant_requests_total", "counter", ("tenant", "outcome"), "Requests answered, with tenants on"),
    Family(
        "router_tenant_tokens_total",
        "counter",
        ("tenant", "kind"),
        "Tokens of finished requests, with tenants on: prompt, available, predicted, delivered, output",
    ),
    Family("router_tenants", "gauge", (), "Tenants in the file in force"),
    Family(
        "router_tenants_file_faulty",
        "gauge",
        (),
        "1 while the tenants file can't be read; what it said before holds",
    ),
    Family(
        "router_shadow_choices_total",
        "counter",
        ("route", "agrees"),
        "Requests the shadow policy decided too, by whether it chose the same replica",
    ),
    Family(
        "router_shadow_tokens_total",
        "counter",
        ("route", "policy"),
        "Prompt tokens to compute by the index: where the live policy sent those requests, where the shadow would have",
    ),
    Family("router_shadow_failures_total", "counter", (), "Choices the shadow policy failed to make"),
    Family(
        "router_loop_stalls_total",
        "counter",
        ("kind",),
        "Times the event loop was held for over 50 ms: busy with the router's own work, or waiting for the machine",
    ),
    Family("router_loop_longest_stall_seconds", "gauge", (), "The longest the event loop was held since the start"),
    Family("router_build_info", "gauge", ("version", "core"), "1; the version, and whether its core is compiled"),
)

_BY_NAME = {family.name: family for family in FAMILIES}
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
DECISION_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

Labels = tuple[str, ...]
Built = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Histogram:
    """Counts per bucket; the last one is beyond every bound."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...] = BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observed(self, seconds: float) -> None:
        bucket, bounds_s = 0, self.bounds_s
        while bucket < len(bounds_s) and bounds_s[bucket] < seconds:  # compiled, cheaper than to call for a bisection
            bucket += 1
        self.counts[bucket] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


def counter(name: str, values: Iterable[tuple[Labels, float]]) -> CounterMetricFamily:
    family = _BY_NAME[name]
    built = CounterMetricFamily(name.removesuffix("_total"), family.help, labels=family.labels)
    for key, value in values:
        built.add_metric(key, value)
    return built


def gauge(name: str, values: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    family = _BY_NAME[name]
    built = GaugeMetricFamily(name, family.help, labels=family.labels)
    for key, value in values:
        built.add_metric(key, value)
    return built


def histograms(name: str, values: Iterable[tuple[Labels, Histogram]]) -> HistogramMetricFamily:
    family = _BY_NAME[name]
    built = HistogramMetricFamily(name, family.help, labels=family.labels)
    for key, value in values:
        built.add_metric(key, value.buckets(), value.sum_s)
    return built


def added(counts: dict[Labels, int], key: Labels, amount: int) -> None:
    """Count so much more under these labels."""
    counts[key] = counts.get(key, 0) + amount


def folded(counts: dict[Labels, int], at: int, gone: str, into: str) -> None:
    """Let what was counted under one value of a label go on under another, so that series of the past don't pile up."""
    for key in [key for key in counts if key[at] == gone]:
        rest = list(key)
        rest[at] = into
        counts[tuple(rest)] = counts.get(tuple(rest), 0) + counts.pop(key)
