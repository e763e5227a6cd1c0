"""Match if it is long enough and loads are even, else fewest requests."""

from collections import Counter

import pytest

from policies.cache_aware import CacheAware
from policies.types import Choice
from tests.policies.views import prompt, replicas


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        # 1000 tokens: more than half is 32 blocks of 16 = 512; uneven: more than 32 apart and more than 1.1 times
        pytest.param("r1 | r2 m=32 f=5", Choice("r2", "prefix"), id="long enough"),
        pytest.param("r1 | r2 m=31 f=5", Choice("r1", "load"), id="496 of 1000 is not more than half"),
        pytest.param("r1 m=40 | r2 m=41 f=9 | r3", Choice("r2", "prefix"), id="the longest, not the calmest"),
        pytest.param("r1 m=40 f=3 | r2 m=40 f=2 | r3", Choice("r2", "prefix"), id="of equal matches the calmer"),
        pytest.param("r1 m=40 f=32 | r2", Choice("r1", "prefix"), id="32 apart is even"),
        pytest.param("r1 m=40 f=33 | r2", Choice("r2", "uneven"), id="33 apart is not"),
        pytest.param("r1 m=40 | r2 f=40 | r3 f=1", Choice("r1", "uneven"), id="whoever is loaded"),
        pytest.param("r1 m=40 f=440 | r2 f=400", Choice("r1", "prefix"), id="40 apart, but not above 1.1 times 400"),
        pytest.param("r1 m=40 f=441 | r2 f=400", Choice("r2", "uneven"), id="above 1.1 times"),
        pytest.param("r1 p=9 f=2 | r2 p=99999 f=1", Choice("r2", "load"), id="requests count, not tokens"),
        pytest.param("r1 f=99 m=9", Choice("r1", "only"), id="one replica"),
    ],
)
def test_by_hand(view: str, expected: Choice) -> None:
    assert CacheAware().choose(prompt(1000), replicas(view)) == expected


def test_settings_are_the_thresholds() -> None:
    policy = CacheAware(cache_threshold=0.3, balance_abs_threshold=64, balance_rel_threshold=1.5)
    assert policy.choose(prompt(1000), replicas("r1 m=19 f=64 | r2")) == Choice("r1", "prefix")
    assert policy.choose(prompt(1000), replicas("r1 m=18 | r2 f=1")) == Choice("r1", "load")
    assert policy.choose(prompt(1000), replicas("r1 m=19 f=65 | r2")) == Choice("r2", "uneven")


@pytest.mark.parametrize("view", ["r1 | r2 | r3 f=1", "r1 m=40 | r2 m=40 | r3 m=39"])
def test_equals_are_drawn_among(view: str) -> None:
    policy = CacheAware()
    counts = Counter(policy.choose(prompt(1000), replicas(view)).replica for _ in range(200))
    assert counts.keys() == {"r1", "r2"}
    assert min(counts.values()) > 60


def test_an_unread_prompt_goes_by_load() -> None:
    assert CacheAware().choose(prompt(0), replicas("r1 f=1 | r2")) == Choice("r2", "load")
