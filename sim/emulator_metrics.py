"""The emulator's /metrics: vLLM's names, labels and meaning, only those a router or a dashboard reads."""

from collections.abc import Mapping

from sim.replica import SimReplica


def exposition(engine: SimReplica, model: str, started_unix_s: float, stopped: int) -> str:
    """Prometheus text of one engine; `stopped` of its finished requests ended by themselves.

    `kv_cache_usage_perc` counts pinned blocks, not those that are merely cached. As in vLLM, an aborted request is
    counted nowhere.
    """
    counters = engine.counters
    served = {"engine": "0", "model_name": model}
    page = _Page(served)
    page.gauge("process_start_time_seconds", started_unix_s, labels={})
    page.gauge("vllm:num_requests_running", engine.running)
    page.gauge("vllm:num_requests_waiting", engine.waiting)
    page.gauge("vllm:num_requests_waiting_by_reason", engine.waiting, labels=served | {"reason": "capacity"})
    page.gauge("vllm:kv_cache_usage_perc", engine.kv_used_fraction)
    page.counter("vllm:prefix_cache_queries", counters.queried_tokens)
    page.counter("vllm:prefix_cache_hits", counters.hit_tokens)
    page.counter("vllm:num_preemptions", counters.preemptions)
    page.counter("vllm:prompt_tokens", counters.prompt_tokens)
    sources = {"local_compute": counters.prompt_tokens - counters.cached_tokens}
    page.counter("vllm:prompt_tokens_by_source", sources | {"local_cache_hit": counters.cached_tokens}, "source")
    page.counter("vllm:prompt_tokens_cached", counters.cached_tokens)
    page.counter("vllm:generation_tokens", counters.generated_tokens)
    ends = {"stop": stopped, "length": counters.finished - stopped, "abort": 0}
    page.counter("vllm:request_success", ends, "finished_reason")
    page.gauge("vllm:cache_config_info", 1, labels=_cache_config(engine))
    return page.text()


class _Page:
    """Prometheus text, one metric after the other."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._lines: list[str] = []

    def gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        self._lines.append(f"# TYPE {name} gauge")
        self._lines.append(_series(name, self._labels if labels is None else labels, value))

    def counter(self, name: str, value: float | Mapping[str, float], label: str = "") -> None:
        """One series, or one for each value of `label`."""
        self._lines.append(f"# TYPE {name}_total counter")
        values = value if isinstance(value, Mapping) else {"": value}
        for word, count in values.items():
            labels = self._labels if not label else {**self._labels, label: word}
            self._lines.append(_series(f"{name}_total", labels, count))

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _cache_config(engine: SimReplica) -> dict[str, str]:
    cache = engine.cache
    return {
        "block_size": str(cache.block_tokens),
        "enable_prefix_caching": "True",
        "engine": "0",
        "kv_cache_size_tokens": str(cache.usable_blocks * cache.block_tokens),
        "num_gpu_blocks": str(cache.blocks),
        "prefix_caching_hash_algo": "sha256",
    }


def _series(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in sorted(labels.items()))
    return f"{name}{{{pairs}}} {float(value)}" if pairs else f"{name} {float(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
