"""Each replica with the same chance, the same draws from the same seed."""

from collections import Counter

from policies.random_choice import RandomChoice
from tests.policies.views import prompt, replicas


def test_all_are_equally_likely_whatever_they_hold_and_do() -> None:
    policy, view = RandomChoice(), replicas("r1 f=50 p=9000 | r2 m=60 | r3 | r4")
    counts = Counter(policy.choose(prompt(1000), view).replica for _ in range(400))
    assert all(70 <= counts[replica.name] <= 130 for replica in view)


def test_the_seed_decides() -> None:
    def drawn(seed: int) -> list[str]:
        policy = RandomChoice(seed=seed)
        return [policy.choose(prompt(1000), replicas("r1 | r2 | r3")).replica for _ in range(50)]

    assert drawn(1) == drawn(1) != drawn(2)
