"""A user stays where it was, unless that replica has more than its bounded share."""

import gc
import math
import tracemalloc
from collections import Counter

import pytest
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.types import Choice, Replica
from policies.user_hash import _SWEEP_CHOICES, UserHash

USERS = [f"user-{number}" for number in range(2_000)]


def idle(*names: str, in_flight: int = 0, weight: float = 1.0) -> tuple[Replica, ...]:
    return tuple(Replica(name, in_flight, 0, 0, 0, 0, None, weight) for name in names)


def numbered(count: int) -> tuple[Replica, ...]:
    return idle(*(f"r{number}" for number in range(count)))


def choose(policy: UserHash, user: str | None, replicas: tuple[Replica, ...]) -> Choice:
    return policy.choose(replace(sample_request(), user=user), replicas)


def homes(policy: UserHash, replicas: tuple[Replica, ...], users: list[str] = USERS) -> dict[str, str]:
    return {user: choose(policy, user, replicas).replica for user in users}


def test_a_user_has_one_home_in_every_router() -> None:
    assert homes(UserHash(seed=1), numbered(4)) == homes(UserHash(seed=2), numbered(4)[::-1])
    assert choose(UserHash(), "u", numbered(4)).reason == "user"


def test_users_spread_by_weight() -> None:
    counts = Counter(homes(UserHash(), (*numbered(3), *idle("big", weight=2.0))).values())
    assert all(250 <= counts[f"r{number}"] <= 550 for number in range(3))
    assert 620 <= counts["big"] <= 980


def test_a_new_replica_takes_users_and_moves_no_others() -> None:
    policy = UserHash()
    before, after = homes(policy, numbered(4)), homes(policy, numbered(5))
    assert {after[user] for user in USERS if after[user] != before[user]} == {"r4"}
    assert 200 <= sum(after[user] != before[user] for user in USERS) <= 600


def test_a_lost_replica_moves_only_its_users_and_gets_them_back() -> None:
    policy = UserHash()
    before = homes(policy, numbered(5))
    without = tuple(replica for replica in numbered(5) if replica.name != "r2")
    during = homes(policy, without)
    assert all(during[user] == before[user] for user in USERS if before[user] != "r2")
    assert len({during[user] for user in USERS if before[user] == "r2"}) > 1, "its users spread"
    assert homes(policy, numbered(5)) == before


def test_each_of_50_replicas_can_go_and_come_back() -> None:
    policy, users = UserHash(), USERS[:100]
    before = homes(policy, numbered(50), users)
    for gone in range(50):
        without = tuple(replica for replica in numbered(50) if replica.name != f"r{gone}")
        during = homes(policy, without, users)
        assert all(during[user] == before[user] for user in users if before[user] != f"r{gone}")
    assert homes(policy, numbered(50), users) == before


def test_a_replica_long_gone_is_forgotten_and_nobody_moves() -> None:
    policy, users = UserHash(), USERS[:50]
    for number in range(40):
        choose(policy, "u", idle("a", "b", f"gone-{number}"))
    before = homes(policy, idle("a", "b"), users)
    for _ in range(2 * _SWEEP_CHOICES):
        choose(policy, "u", idle("a", "b"))
    assert set(policy._weights) == {"a", "b"}
    assert homes(policy, idle("a", "b"), users) == before


def test_a_changed_weight_moves_users() -> None:
    policy = UserHash()
    before = Counter(homes(policy, numbered(2)).values())
    after = Counter(homes(policy, (*idle("r0", weight=4.0), *idle("r1"))).values())
    assert after["r0"] > before["r0"] + 300


def test_one_user_s_burst_is_bounded() -> None:
    policy, counts = UserHash(), Counter[str]()
    for _ in range(40):
        replicas = tuple(replace(replica, in_flight=counts[replica.name]) for replica in numbered(4))
        counts[choose(policy, "u", replicas).replica] += 1
    assert max(counts.values()) <= max(8, math.ceil(1.25 * 41 / 4))
    assert len(counts) == 4


def test_below_the_least_bound_nobody_spills_in_a_large_fleet() -> None:
    policy, replicas = UserHash(), numbered(200)
    home = choose(policy, "u", replicas).replica
    busy = tuple(replace(replica, in_flight=7 if replica.name == home else 0) for replica in replicas)
    assert choose(policy, "u", busy) == Choice(home, "user")
    full = tuple(replace(replica, in_flight=8 if replica.name == home else 0) for replica in replicas)
    spilled = choose(policy, "u", full)
    assert spilled.reason == "spill"
    assert spilled.replica != home
    assert choose(policy, "u", replicas) == Choice(home, "user"), "and back when calm"


def test_a_crowded_large_fleet_spreads() -> None:
    policy, counts = UserHash(), Counter[str]()
    names = numbered(200)
    for number in range(800):
        replicas = tuple(replace(replica, in_flight=counts[replica.name]) for replica in names)
        counts[choose(policy, "hot" if number % 4 == 0 else USERS[number], replicas).replica] += 1
    assert max(counts.values()) <= 8


def test_a_home_tried_in_vain_hands_over_to_one_and_the_same_next() -> None:
    policy = UserHash()
    home = choose(policy, "u", numbered(4)).replica
    rest = tuple(replica for replica in numbered(4) if replica.name != home)
    assert len({choose(policy, "u", rest).replica for _ in range(10)}) == 1
    assert choose(policy, "u", rest).reason == "user"


def test_users_are_not_remembered() -> None:
    policy = UserHash()
    homes(policy, numbered(4), USERS[:1])
    tracemalloc.start()
    try:
        for number in range(20_000):
            choose(policy, f"visitor-{number}", numbered(4))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 100_000, "five bytes a user"
    finally:
        tracemalloc.stop()


def test_without_a_user_load_decides() -> None:
    replicas = (*idle("busy", in_flight=5), *idle("free"))
    assert choose(UserHash(), None, replicas) == Choice("free", "load")


@pytest.mark.parametrize("user", ["", "\ud800", "北京", "x" * 100_000, "a\x00b"])
def test_any_user_has_a_home(user: str) -> None:
    policy = UserHash()
    assert choose(policy, user, numbered(3)) == choose(policy, user, numbered(3))
