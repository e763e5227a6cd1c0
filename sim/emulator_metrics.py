"""The emulator's /metrics: vLLM's names, labels and meaning, only those a router or a dashboard reads."""

from sim.replica import SimReplica


def exposition(engine: SimReplica, model: str, started_unix_s: float) -> str:
    """Prometheus text of one engine. `kv_cache_usage_perc` counts pinned blocks, not those that are merely cached."""
    labels = f'engine="0",model_name="{_label(model)}"'
    counters = engine.counters
    lines = [
        *_metric("process_start_time_seconds", "gauge", "", started_unix_s),
        *_metric("vllm:cache_config_info", "gauge", _cache_config(engine), 1.0),
        *_metric("vllm:num_requests_running", "gauge", labels, engine.running),
        *_metric("vllm:num_requests_waiting", "gauge", labels, engine.waiting),
        *_metric("vllm:kv_cache_usage_perc", "gauge", labels, engine.kv_used_fraction),
        *_metric("vllm:prefix_cache_queries_total", "counter", labels, counters.queried_tokens),
        *_metric("vllm:prefix_cache_hits_total", "counter", labels, counters.hit_tokens),
        *_metric("vllm:num_preemptions_total", "counter", labels, counters.preemptions),
        *_metric("vllm:prompt_tokens_total", "counter", labels, counters.prompt_tokens),
        *_metric("vllm:prompt_tokens_cached_total", "counter", labels, counters.cached_tokens),
        *_metric("vllm:generation_tokens_total", "counter", labels, counters.generated_tokens),
        *_metric("vllm:request_success_total", "counter", f'finished_reason="length",{labels}', counters.finished),
    ]
    return "\n".join(lines) + "\n"


def _cache_config(engine: SimReplica) -> str:
    cache = engine.cache
    values = {
        "block_size": cache.block_tokens,
        "enable_prefix_caching": True,
        "engine": 0,
        "kv_cache_size_tokens": cache.usable_blocks * cache.block_tokens,
        "num_gpu_blocks": cache.blocks,
        "prefix_caching_hash_algo": "sha256",
    }
    return ",".join(f'{name}="{value}"' for name, value in values.items())


def _metric(name: str, kind: str, labels: str, value: float) -> tuple[str, str]:
    series = f"{name}{{{labels}}}" if labels else name
    return f"# TYPE {name} {kind}", f"{series} {float(value)}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
