"""What a replica says of itself in Prometheus text: load, block pool, prefix-cache counters, start time.

Reads the few lines it needs from the 50 to 85 KB a vLLM server prints (0.3 to 0.5 ms); old and new names are known. The
one rule: a number that is missing is `None`, never 0, because an unknown replica is not an idle one. Several engines
behind one server (label `engine`) are summed; shares are averaged. Not here: fetching.
"""

import re
from dataclasses import dataclass

from policies.fleet import Report

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second until vLLM 0.10
_QUERIES = ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
_HITS = ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits")
_EXTERNAL = "vllm:external_prefix_cache_queries"
_CONFIG = "vllm:cache_config_info"
_STARTED = "process_start_time_seconds"

# Counters end in _total on the wire; versions that print the bare name exist. `_created` series are another metric.
_NAMES = [
    _RUNNING,
    _WAITING,
    *_KV_USED,
    *(name + end for name in (*_QUERIES, *_HITS, _EXTERNAL) for end in ("", "_total")),
]
_LINE = re.compile(
    rf"\n({'|'.join(map(re.escape, [*_NAMES, _CONFIG, _STARTED]))})(?:\{{(.*)\}})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t\r]*$",
    re.MULTILINE,
)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')

Samples = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading of one replica. `None` means the replica does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_used_fraction: float | None = None
    block_tokens: int | None = None
    capacity_blocks: int | None = None
    """Blocks of the pools of all engines together, the null block vLLM keeps of each included."""
    prefix_caching: bool | None = None
    hash_algorithm: str | None = None
    queried_tokens_total: int | None = None
    hit_tokens_total: int | None = None
    external_tokens_total: int | None = None
    """Tokens asked for in a cache outside the engine, behind a KV connector; 0 where there is none."""
    started_s: float | None = None
    """Start of the process, seconds since 1970."""
    engines: int = 0

    @property
    def usable_blocks(self) -> int | None:
        """Blocks that can hold a prompt: each engine keeps one null block for itself."""
        return None if self.capacity_blocks is None else max(0, self.capacity_blocks - self.engines)

    @property
    def size(self) -> str:
        """The cache's size in words."""
        if self.capacity_blocks is None:
            return "cache size unknown"
        return f"{self.capacity_blocks} blocks of {self.block_tokens} tokens"

    @property
    def report(self) -> Report:
        """The part a fleet keeps."""
        return Report(
            self.running,
            self.waiting,
            self.kv_used_fraction,
            self.block_tokens,
            self.usable_blocks,
            self.prefix_caching,
        )

    @property
    def hit_fraction(self) -> float | None:
        """Share of queried tokens that were cached since the start; `None` before the first query."""
        if not self.queried_tokens_total or self.hit_tokens_total is None:
            return None
        return min(1.0, self.hit_tokens_total / self.queried_tokens_total)

    def restarted_since(self, earlier: "EngineMetrics") -> bool:
        """Whether the engine behind these numbers is another process than the one behind `earlier`."""
        if self.started_s is not None and earlier.started_s is not None:
            return abs(self.started_s - earlier.started_s) > 0.5
        now, before = self.queried_tokens_total, earlier.queried_tokens_total
        return now is not None and before is not None and now < before


def parse(text: str, rank: int | None = None) -> EngineMetrics:
    """Read what is there; lines that make no sense are passed over. With a `rank`, of that engine alone."""
    samples, configs = _samples(text)
    sizes = [size for size in (_whole(config.get("block_size")) for config in configs) if size]
    pools = [_whole(config.get("num_gpu_blocks")) for config in configs]
    used = _first(samples, _KV_USED)
    engines = {engine for series in samples.values() for engine in series if engine} | {
        config["engine"] for config in configs if config.get("engine")
    }
    count = len(engines) or 1
    if rank is not None:
        own = (str(rank), "")
        samples = {name: {key: series[key] for key in own if key in series} for name, series in samples.items()}
        samples = {name: series for name, series in samples.items() if series}
        used, engines = _first(samples, _KV_USED), {str(rank)}
    return EngineMetrics(
        running=_total(samples, (_RUNNING,)),
        waiting=_total(samples, (_WAITING,)),
        kv_used_fraction=min(1.0, max(0.0, sum(used.values()) / len(used))) if used else None,
        block_tokens=min(sizes) if sizes else None,
        # Each engine's line shows the sum over all engines behind this server (seen with vLLM 0.32, data-parallel 2).
        capacity_blocks=_share(max((pool for pool in pools if pool), default=None), 1 if rank is None else count),
        prefix_caching=_all_true([config.get("enable_prefix_caching") for config in configs]),
        hash_algorithm=next(
            (found for config in configs if (found := _said(config, "prefix_caching_hash_algo"))), None
        ),
        queried_tokens_total=_total(samples, _QUERIES),
        hit_tokens_total=_total(samples, _HITS),
        external_tokens_total=_total(samples, (_EXTERNAL,)),
        started_s=min(samples[_STARTED].values()) if samples.get(_STARTED) else None,
        engines=max(1, len(engines)) if samples or configs else 0,
    )


def _samples(text: str) -> tuple[Samples, list[dict[str, str]]]:
    """Values by metric (without `_total`) and engine, models added up; and the labels of each configuration line."""
    samples: Samples = {}
    configs: list[dict[str, str]] = []
    # Lines are found by the line ends before them, in a third of the time that `^` takes.
    for name, labels, number in _LINE.findall("\n" + text):
        if name == _CONFIG:
            configs.append(dict(_LABEL.findall(labels)))
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        if not 0 <= value < 2**63:  # NaN fails too
            continue
        engine = dict(_LABEL.findall(labels)).get("engine", "")
        series = samples.setdefault(name.removesuffix("_total"), {})
        series[engine] = series.get(engine, 0.0) + value
    return samples, configs


def _share(pool: int | None, engines: int) -> int | None:
    return None if pool is None else pool // engines


def _first(samples: Samples, names: tuple[str, ...]) -> dict[str, float]:
    return next((samples[name] for name in names if name in samples), {})


def _total(samples: Samples, names: tuple[str, ...]) -> int | None:
    series = _first(samples, names)
    return round(sum(series.values())) if series else None


def _whole(text: str | None) -> int | None:
    """A positive whole number, or nothing: vLLM prints None for what it has not settled."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def _said(config: dict[str, str], label: str) -> str | None:
    text = config.get(label)
    return None if text in (None, "", "None") else text


def _all_true(texts: list[str | None]) -> bool | None:
    known = [text == "True" for text in texts if text in ("True", "False")]
    return all(known) if known else None
