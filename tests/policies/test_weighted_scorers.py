"""Points for prefix, queue and pool."""

from collections import Counter

import pytest

from policies.types import Choice
from policies.weighted_scorers import WeightedScorers
from tests.policies.views import prompt, replicas


@pytest.mark.parametrize(
    ("view", "scores", "expected"),
    [
        # 161 tokens, 10 blocks: 3 m / 10 + 2 (longest - q) / (longest - shortest) + 2 (1 - k)
        pytest.param(
            "a m=10 q=4 k=0.5 | b q=0 k=0.25", [3 + 0 + 1, 0 + 2 + 1.5], Choice("a", "score"), id="prefix wins"
        ),
        pytest.param(
            "a m=8 q=4 k=0.5 | b q=0 k=0.25", [2.4 + 1, 2 + 1.5], Choice("b", "score"), id="queue and pool win"
        ),
        pytest.param("a q=8 k=1 | b q=2 k=1 | c q=0 k=1 m=1", [0, 1.5, 2.3], Choice("c", "score"), id="min to max"),
        pytest.param("a q=3 k=0.5 | b q=3 k=0.75", [2 + 1, 2 + 0.5], Choice("a", "score"), id="equal queues are best"),
        pytest.param("a m=5 | b q=0 k=0.9", [1.5, 2 + 0.2], Choice("b", "score"), id="no report, no points"),
        pytest.param("a m=5 | b", [1.5, 0], Choice("a", "score"), id="nobody reported"),
    ],
)
def test_by_hand(view: str, scores: list[float], expected: Choice) -> None:
    policy = WeightedScorers()
    lacking = list(policy.explained(prompt(161), replicas(view)).values())
    assert lacking == pytest.approx([7 - score for score in scores])
    assert policy.choose(prompt(161), replicas(view)) == expected


def test_weights_are_settings() -> None:
    policy = WeightedScorers(prefix_weight=1, queue_weight=1, kv_weight=1)
    view = replicas("a m=10 q=4 k=0.5 | b q=0 k=0.25")
    assert list(policy.explained(prompt(161), view).values()) == pytest.approx([3 - 1.5, 3 - 1.75])
    assert policy.choose(prompt(161), view) == Choice("b", "score")


def test_equals_are_drawn_among() -> None:
    policy = WeightedScorers()
    counts = Counter(policy.choose(prompt(161), replicas("a q=1 | b q=1 | c q=2")) for _ in range(200))
    assert counts.keys() == {Choice("a", "tie"), Choice("b", "tie")}
    assert min(counts.values()) > 60


def test_one_replica_and_an_unread_prompt() -> None:
    assert WeightedScorers().choose(prompt(161), replicas("a q=9")) == Choice("a", "only")
    assert WeightedScorers().choose(prompt(0), replicas("a q=9 | b q=1")) == Choice("b", "score")
