"""A product of work and company."""

from collections import Counter

import pytest

from policies.lmetric import LMetric
from policies.types import Choice
from tests.policies.views import prompt, replicas


@pytest.mark.parametrize(
    ("view", "scores", "expected"),
    [
        # 1000 tokens, blocks of 16: (p + 1000 - 16 m) x (f + 1)
        ("r1 m=50 f=3 | r2", [800, 1000], Choice("r1", "score")),
        ("r1 m=50 f=4 | r2", [1000, 1000], Choice("r1", "tie")),
        ("r1 m=50 f=5 | r2", [1200, 1000], Choice("r2", "score")),
        ("r1 m=50 p=900 | r2", [1100, 1000], Choice("r2", "score")),
        ("r1 p=2000 | r2 f=9 m=45", [3000, 2800], Choice("r2", "score")),
        ("r1 m=62 f=99", [800], Choice("r1", "only")),
    ],
)
def test_by_hand(view: str, scores: list[int], expected: Choice) -> None:
    policy = LMetric(seed=1)
    assert list(policy.explained(prompt(1000), replicas(view)).values()) == scores
    choice = policy.choose(prompt(1000), replicas(view))
    assert choice == expected or choice.reason == expected.reason == "tie"


def test_the_request_itself_counts() -> None:
    """Without the + 1 every idle replica would score 0, warm or not."""
    assert LMetric().choose(prompt(1000), replicas("r1 | r2 m=10 | r3")) == Choice("r2", "score")


def test_equals_are_drawn_among() -> None:
    policy = LMetric()
    counts = Counter(policy.choose(prompt(1000), replicas("r1 | r2 | r3 f=1 | r4")).replica for _ in range(300))
    assert counts.keys() == {"r1", "r2", "r4"}
    assert min(counts.values()) > 70


def test_an_unread_prompt_goes_to_the_least_pending_work() -> None:
    assert LMetric().choose(prompt(0), replicas("r1 p=10 f=1 | r2 p=15")) == Choice("r2", "score")
