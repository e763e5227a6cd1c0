"""The bounds: what follows from a workload alone, and the policy that sees the true caches."""

import pytest

from policies.blocks import hittable_blocks
from sim.arrivals import Arrival, Workload
from sim.bounds import INFINITE_CACHE, NO_CACHE, cache_bounds, oracle
from sim.results import Limits, result
from sim.run import Setup
from tests.sim.loads import BLOCK, chats, keys


def test_one_infinite_cache_has_every_block_that_came_before():
    load = chats(200)
    seen, hits = set(), 0
    for arrival in load.arrivals:
        for key in arrival.keys[: hittable_blocks(arrival.prompt_tokens, BLOCK)]:
            if key not in seen:
                break
            hits += BLOCK
        seen.update(arrival.keys)
    nothing, everything = cache_bounds(load)
    assert (nothing.policy, everything.policy) == (NO_CACHE, INFINITE_CACHE)
    assert nothing.hit_rate == 0.0
    assert nothing.computed_tokens == nothing.prompt_tokens == everything.prompt_tokens
    assert everything.prompt_tokens - everything.computed_tokens == hits > 0
    assert everything.hit_rate == pytest.approx(hits / everything.prompt_tokens)


def test_a_request_that_reads_no_cache_hits_nothing_and_still_fills_it():
    chain = keys("a", 0, 5)
    arrivals = [Arrival(n, float(n), 81, 1, chain, reads_cache=n != 1) for n in range(3)]
    _, everything = cache_bounds(Workload("test", BLOCK, arrivals))
    assert everything.prompt_tokens - everything.computed_tokens == 80


def test_lengths_alone_have_no_bounds():
    assert cache_bounds(chats(has_prefixes=False)) == ()


def test_an_empty_workload_has_no_rate():
    _, everything = cache_bounds(Workload("empty", BLOCK, ()))
    assert everything.hit_rate is None


def test_what_the_oracle_predicts_is_delivered():
    """At low load nothing is evicted between the choice and the admission."""
    told = result("oracle", oracle(chats(), Setup(replicas=3, blocks=400)), limits=Limits())
    assert told.predicted_hit_rate == pytest.approx(told.hit_rate, abs=0.01)
    assert told.hit_rate > 0.5
