"""The emulator's /metrics: vLLM's names, labels and meaning, only those a router or a dashboard reads."""

from collections.abc import Mapping, Sequence
from itertools import chain

from sim.emulator_latency import Histogram
from sim.emulator_pages import ALGORITHM
from sim.emulator_server import Server
from sim.replica import SimReplica


def exposition(server: Server) -> str:
    """Prometheus text of one server.

    `kv_cache_usage_perc` counts pinned blocks, not those that are merely cached. As in vLLM, an aborted request is
    counted nowhere.
    """
    model, page = server.limits.model, _Page()
    page.said("process_start_time_seconds", "gauge", [_series("process_start_time_seconds", {}, server.started_unix_s)])
    for rank in server.ranks:
        engine, counters = rank.live.engine, rank.live.engine.counters
        page.labels = {"engine": str(rank.number), "model_name": model}
        page.gauge("vllm:num_requests_running", engine.running)
        page.gauge("vllm:num_requests_waiting", engine.waiting)
        page.gauge("vllm:num_requests_waiting_by_reason", engine.waiting, reason="capacity")
        page.gauge("vllm:kv_cache_usage_perc", engine.kv_used_fraction)
        page.counter("vllm:prefix_cache_queries", counters.queried_tokens)
        page.counter("vllm:prefix_cache_hits", counters.hit_tokens)
        page.counter("vllm:num_preemptions", counters.preemptions)
        page.counter("vllm:prompt_tokens", counters.prompt_tokens)
        sources = {"local_compute": counters.prompt_tokens - counters.cached_tokens}
        page.counter("vllm:prompt_tokens_by_source", sources | {"local_cache_hit": counters.cached_tokens}, "source")
        page.counter("vllm:prompt_tokens_cached", counters.cached_tokens)
        page.counter("vllm:generation_tokens", counters.generated_tokens)
        ends = {"stop": rank.stopped, "length": counters.finished - rank.stopped, "abort": 0}
        page.counter("vllm:request_success", ends, "finished_reason")
        page.histogram("vllm:time_to_first_token_seconds", rank.live.first_token_s)
        page.histogram("vllm:e2e_request_latency_seconds", rank.live.request_s)
        config = _series("vllm:cache_config_info", _cache_config(engine, rank.number, len(server.ranks)), 1)
        page.said("vllm:cache_config_info", "gauge", [config])
    rejected = _series("vllm:admission_rejections_total", {"model_name": model, "reason": _QUEUE}, server.rejected)
    page.said("vllm:admission_rejections_total", "counter", [rejected])
    return page.text()


_QUEUE = "max_num_queued_reqs"


class _Page:
    """Prometheus text, one metric after the other, each with the series of all engines."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        """Of the engine that is spoken of."""
        self._metrics: dict[str, list[str]] = {}

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.said(name, "gauge", [_series(name, self.labels | labels, value)])

    def counter(self, name: str, value: float | Mapping[str, float], label: str = "") -> None:
        """One series, or one for each value of `label`."""
        name += "_total"
        values = value if isinstance(value, Mapping) else {"": value}
        labels = [(self.labels if not label else {**self.labels, label: word}, values[word]) for word in values]
        self.said(name, "counter", [_series(name, labelled, count) for labelled, count in labels])

    def histogram(self, name: str, values: Histogram) -> None:
        cumulated = values.cumulated
        lines = [_series(f"{name}_bucket", {**self.labels, "le": bound}, count) for bound, count in cumulated]
        lines.append(_series(f"{name}_count", self.labels, cumulated[-1][1]))
        self.said(name, "histogram", [*lines, _series(f"{name}_sum", self.labels, values.total)])

    def said(self, name: str, kind: str, series: Sequence[str]) -> None:
        self._metrics.setdefault(name, [f"# TYPE {name} {kind}"]).extend(series)

    def text(self) -> str:
        return "\n".join(chain.from_iterable(self._metrics.values())) + "\n"


def _cache_config(engine: SimReplica, rank: int, ranks: int) -> dict[str, str]:
    """vLLM 0.32 tells the blocks of all ranks together, with each of them."""
    cache = engine.cache
    return {
        "block_size": str(cache.block_tokens),
        "enable_prefix_caching": "True",
        "engine": str(rank),
        "kv_cache_size_tokens": str(cache.usable_blocks * cache.block_tokens),
        "num_gpu_blocks": str(ranks * cache.blocks),
        "prefix_caching_hash_algo": ALGORITHM,
    }


def _series(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in sorted(labels.items()))
    return f"{name}{{{pairs}}} {float(value)}" if pairs else f"{name} {float(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
