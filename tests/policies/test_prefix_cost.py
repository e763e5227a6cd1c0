"""The formula, by hand; what it makes of views stands in test_prefix_aware."""

import pytest

from policies.prefix_cost import costs, is_warmest
from tests.policies.views import prompt, replicas


def crowd(uncached: float) -> float:
    """What one more request in an idle fleet counts for: the longer the prompt, the less."""
    return 32_768 / (32_768 + uncached)


@pytest.mark.parametrize(
    ("view", "stickiness", "expected"),
    [
        # 1,600 tokens uncached; price: k 3, full 2 x 1 (size unknown), a crowd of one, no queue
        pytest.param("r1", None, [(5 + crowd(1600)) * 1600], id="nothing known"),
        pytest.param("r1", 1.0, [(3 + crowd(1600)) * 1600], id="a given k"),
        pytest.param("r1 n=100 h=50", None, [(4 + crowd(1600)) * 1600], id="half full"),
        pytest.param("r1 n=100 h=50 w=2", None, [(4 + crowd(1600)) * 800], id="twice as fast"),
        pytest.param(
            "r1 n=100 h=150 k=0.5", None, [(4 + 2 + crowd(1600)) * 1600], id="running requests hold half of the pool"
        ),
        pytest.param("r1 n=100 k=1", None, [(12 + crowd(1600)) * 1600], id="they hold all of it"),
        # (2 + 1) / (1 + 1) = 1.5 crowds; r1 waits 64 x 2 + 32 = 160 tokens, a tenth of the prompt
        pytest.param(
            "r1 f=2 p=32 m=50 n=9 | r2 n=9",
            None,
            [160 + (3 + 1.5 * crowd(800) + 0.2) * 800, (3 + 0.5 * crowd(1600)) * 1600],
            id="load and match",
        ),
        # the shortest wait is 32,768 tokens, for the second is twice as fast: a crowd counts 1 + 32 / 2
        pytest.param(
            "r1 p=32768 n=9 | r2 p=65536 w=2 n=9",
            None,
            [
                32_768 + (3 + 17 * crowd(1600) + 40.96) * 1600,
                (65_536 + (3 + 17 * crowd(1600) + 81.92) * 1600) / 2,
            ],
            id="all have queues",
        ),
        # r1 lacks 10 of 60 shared blocks, r2 all but those 20 that are scarce
        pytest.param(
            "r1 n=100 h=50 m=50 s=60 c=20 | r2 n=100 h=50 s=60 c=20",
            None,
            [(4 + crowd(720)) * (640 + 0.5 * 160), (4 + crowd(960)) * (640 + 0.5 * 640)],
            id="a shared head",
        ),
    ],
)
def test_the_cost_of_a_prompt(view: str, stickiness: float | None, expected: list[float]) -> None:
    assert costs(prompt(1600), replicas(view), 64.0, stickiness) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("r1 m=3", [False]),
        ("r1 m=3 | r2 m=3", [False, False]),
        ("r1 m=3 | r2 m=5 | r3 m=5 | r4", [False, True, True, False]),
    ],
)
def test_the_warmest_of_those_that_are_not_all_as_warm(view: str, expected: list[bool]) -> None:
    seen = replicas(view)
    assert [is_warmest(replica, seen) for replica in seen] == expected
