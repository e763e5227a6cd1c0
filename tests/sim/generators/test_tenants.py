"""The tenants' loads are the published ones; one cache each, they hit what was measured of the published ones."""

import itertools
from collections import Counter

import pytest

from policies.index import PrefixIndex
from sim.generators.tenants import DRAIN_S, STAGES_73
from sim.presets import preset
from tests.sim.traffic import found


def test_the_73_percent_load():
    arrivals = list(preset("tenants", requests=750).arrivals)
    assert {arrival.prompt_tokens for arrival in arrivals} == {7_200}
    assert len({arrival.tenant for arrival in arrivals}) == 150
    assert set(Counter(arrival.user for arrival in arrivals).values()) == {1}


def test_the_37_percent_load_comes_at_a_constant_rate():
    arrivals = list(preset("tenants-37", requests=249, rate=5).arrivals)
    assert {arrival.prompt_tokens for arrival in arrivals} == {9_000}
    assert len({arrival.tenant for arrival in arrivals}) == 83
    assert [arrival.time_s for arrival in arrivals[:3]] == [0.0, 0.2, 0.4]


@pytest.mark.parametrize(("name", "hit"), [("tenants", 0.936), ("tenants-37", 0.974)])
def test_what_one_cache_finds(name, hit):
    assert found(preset(name, requests=4_000)).hit == pytest.approx(hit, abs=0.003)


@pytest.mark.parametrize(
    ("name", "replicas", "blocks", "hit"), [("tenants", 8, 19_208, 0.172), ("tenants-37", 4, 28_836, 0.382)]
)
def test_what_round_robin_finds(name, replicas, blocks, hit):
    """Measured on LRU caches without answers: .172 and .382."""
    workload = preset(name, requests=4_000, cache_outputs=False)
    index = PrefixIndex()
    for place in range(replicas):
        index.joined(str(place), blocks)
    hits = prompts = 0
    for arrival in workload.arrivals:
        place = str(arrival.number % replicas)
        hits += index.matched(arrival.keys[:-1]).get(place, 0) * 16
        prompts += arrival.prompt_tokens
        index.recorded(place, arrival.keys)
    assert hits / prompts == pytest.approx(hit, abs=0.05)


def test_stages_are_as_published():
    times = [arrival.time_s for arrival in preset("tenants-stages").arrivals]
    assert len(times) == 17_084 == sum(rate * seconds for rate, seconds in STAGES_73)
    pauses = [after - before for before, after in itertools.pairwise(times) if after - before >= DRAIN_S]
    assert len(pauses) == len(STAGES_73) - 1
