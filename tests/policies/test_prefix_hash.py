"""Prompts that begin alike meet, unless that place has more than its bounded share."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.prefix_hash import PrefixHash
from policies.types import Choice, Request
from tests.policies.views import prompt, replicas

IDLE = replicas("a | b | c | d")


def order(policy: PrefixHash, request: Request) -> list[str]:
    """The replicas from the prompt's place onward."""
    return list(policy._ring.onward(policy._key(request), ["a", "b", "c", "d"]))


def loaded(**in_flight: int):
    return tuple(replace(replica, in_flight=in_flight.get(replica.name, 0)) for replica in IDLE)


def test_prompts_that_begin_alike_meet() -> None:
    policy = PrefixHash()
    head = prompt(33, number=7)  # two blocks of 16 tokens and one token
    homes = set()
    for number in range(20):
        request = replace(prompt(1000, number), blocks=head.blocks + prompt(900, number).blocks)
        homes.add(policy.choose(request, IDLE))
    assert len(homes) == 1
    assert homes.pop().reason == "prefix"


def test_beginnings_spread() -> None:
    policy = PrefixHash()
    counts = Counter(policy.choose(prompt(1000, number), IDLE).replica for number in range(400))
    assert all(60 <= counts[replica.name] <= 140 for replica in IDLE)


@pytest.mark.parametrize(("tokens", "block"), [(1, 0), (16, 0), (17, 1), (32, 1), (256, 15), (99_999, 61)])
def test_the_beginning_is_whole_blocks(tokens: int, block: int) -> None:
    request = prompt(1000)
    assert PrefixHash(prefix_tokens=tokens)._key(request) == request.blocks[block].hex()


def test_the_bound_by_hand() -> None:
    """10 in flight over 4: at most 1.25 x 11 / 4 = 3.4375, so a replica with 2 takes a third, one with 3 no fourth."""
    policy, request = PrefixHash(), prompt(1000)
    first, second, third, last = order(policy, request)
    assert policy.choose(request, loaded(**{first: 2, last: 8})) == Choice(first, "prefix")
    assert policy.choose(request, loaded(**{first: 3, last: 7})) == Choice(second, "spill")
    assert policy.choose(request, loaded(**{first: 3, second: 3, last: 4})) == Choice(third, "spill")


def test_when_none_is_allowed_the_first_takes_it() -> None:
    """1 in flight over 4: at most 1.25 x 2 / 4 = 0.625, which no replica can keep."""
    policy, request = PrefixHash(), prompt(1000)
    first, second, *_ = order(policy, request)
    assert policy.choose(request, loaded(**{first: 1})) == Choice(first, "full")
    assert policy.choose(request, loaded(**{second: 1})) == Choice(first, "full")


def test_an_idle_fleet_has_no_bound() -> None:
    policy, request = PrefixHash(bound=0.1), prompt(1000)
    assert policy.choose(request, IDLE) == Choice(order(policy, request)[0], "prefix")


@given(
    number=st.integers(0, 50),
    loads=st.tuples(*[st.integers(0, 9)] * 4),
    bound=st.sampled_from([1.0, 1.25, 2.0]),
)
def test_the_first_that_is_allowed(number: int, loads: tuple[int, ...], bound: float) -> None:
    policy, request = PrefixHash(bound=bound), prompt(1000, number)
    in_flight = dict(zip("abcd", loads, strict=True))
    names = order(policy, request)
    allowed = [
        name for name in names if not sum(loads) or in_flight[name] + 1 <= bound * (sum(loads) + 1) / 4
    ] or names[:1]
    assert policy.choose(request, loaded(**in_flight)).replica == allowed[0]


def test_a_hot_prefix_is_bounded() -> None:
    policy, request, counts = PrefixHash(), prompt(1000), Counter[str]()
    for _ in range(100):
        counts[policy.choose(request, loaded(**counts)).replica] += 1
    assert len(counts) == 4
    assert max(counts.values()) <= 1.25 * 101 / 4 + 1


def test_without_blocks_the_fewest_requests() -> None:
    assert PrefixHash().choose(prompt(10), loaded(a=1, b=1, d=1)) == Choice("c", "load")
    assert PrefixHash().choose(prompt(10), IDLE[:1]) == Choice("a", "only")
