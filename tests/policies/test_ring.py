"""Keys have an order of replicas of their own, and others' coming and going hardly changes it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from policies.ring import Ring
from policies.roster import SWEEP_CHOICES

KEYS = [f"key-{number}" for number in range(400)]


def named(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


def homes(ring: Ring, names: list[str]) -> dict[str, str]:
    return {key: next(ring.onward(key, names)) for key in KEYS}


@given(key=st.text(), count=st.integers(1, 5), order=st.randoms(use_true_random=False))
def test_all_that_are_offered_come_once_in_the_key_s_order(key: str, count: int, order) -> None:
    names = named(count)
    expected = list(Ring(20).onward(ascii(key), names))
    assert sorted(expected) == names
    order.shuffle(names)
    assert list(Ring(20).onward(ascii(key), names)) == expected


def test_keys_spread_evenly() -> None:
    counts = Counter(homes(Ring(256), named(4)).values())
    assert all(60 <= counts[name] <= 140 for name in named(4))


def test_a_newcomer_takes_keys_and_moves_no_others() -> None:
    ring = Ring(100)
    before, after = homes(ring, named(4)), homes(ring, named(5))
    assert {after[key] for key in KEYS if after[key] != before[key]} == {"r4"}


def test_one_out_of_view_gives_its_keys_to_the_next_and_gets_them_back() -> None:
    ring = Ring(100)
    before = homes(ring, named(4))
    seconds = {key: list(ring.onward(key, named(4)))[1] for key in KEYS}
    during = homes(ring, ["r0", "r1", "r3"])
    assert during == {key: seconds[key] if home == "r2" else home for key, home in before.items()}
    assert homes(ring, named(4)) == before


def test_one_long_gone_leaves_the_ring() -> None:
    ring = Ring(20)
    homes(ring, named(3))
    for _ in range(2 * SWEEP_CHOICES):
        ring.onward("key", ["r0", "r1"])
    assert homes(ring, ["r0", "r1"]) == homes(Ring(20), ["r0", "r1"])
    assert len(ring._roster) == 2
