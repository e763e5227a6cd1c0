"""What no policy can beat, what the worst one can't fall below, and an oracle: the first rows of every comparison.

    no cache             every prompt token is computed
    one infinite cache   every block of every earlier request is there: the share of tokens that the traffic repeats
    oracle               prefix-aware over a perfect index: it is told what each real cache holds at that moment.
                         A yardstick, no bound: another rule, or luck, may come out ahead of it

The one rule: the first two follow from the workload alone, without time. They say nothing of latencies.
"""

from dataclasses import replace

from policies.index import PrefixIndex
from policies.plugins import load
from sim.arrivals import Workload
from sim.outcome import Outcome
from sim.results import Result
from sim.run import Progress, Setup, simulate

NO_CACHE = "no cache"
INFINITE_CACHE = "one infinite cache"
ORACLE = "oracle"

_WITHOUT_END = 1 << 62


def cache_bounds(workload: Workload) -> tuple[Result, ...]:
    """The rows of no cache and of one infinite cache; none where prefixes are not known."""
    if not workload.has_prefixes:
        return ()
    index = PrefixIndex()
    index.joined("all", _WITHOUT_END)
    block_tokens = workload.block_tokens
    requests = prompt_tokens = hit_tokens = 0
    for arrival in workload.arrivals:
        requests += 1
        prompt_tokens += arrival.prompt_tokens
        if arrival.reads_cache:
            hittable = (arrival.prompt_tokens - 1) // block_tokens
            hit_tokens += index.matched(arrival.keys[:hittable]).get("all", 0) * block_tokens
        index.recorded("all", arrival.keys)
    nothing = Result(NO_CACHE, requests, prompt_tokens, prompt_tokens, 0.0)
    everything = Result(
        INFINITE_CACHE,
        requests,
        prompt_tokens,
        prompt_tokens - hit_tokens,
        hit_tokens / prompt_tokens if prompt_tokens else None,
    )
    return nothing, everything


def oracle(workload: Workload, setup: Setup, *, progress: Progress | None = None) -> Outcome:
    """The default policy with the true caches for an index."""
    told = replace(setup, belief=replace(setup.belief, source="truth", speculative=True, report_every_s=0.0))
    return simulate(workload, load("prefix-aware", seed=setup.seed), told, progress=progress)
