"""What holds of every preset: the same bytes twice, options that do what they say, errors that say what to do."""

import functools
import itertools

import pytest

from sim.arrivals import Arrival
from sim.cost import PROFILES
from sim.presets import PRESETS, PresetError, preset, preset_of
from tests.sim.traffic import found, hit_tokens

EACH = pytest.mark.parametrize("name", PRESETS)
SOME = 400


@functools.cache
def some(name: str, **options: object) -> list[Arrival]:
    return list(preset(name, requests=SOME, **options).arrivals)


@EACH
def test_gone_through_again_it_is_the_same(name):
    workload = preset(name, requests=SOME)
    first, again = list(workload.arrivals), list(workload.arrivals)
    assert first == again == some(name)
    assert len(first) == workload.requests == SOME
    assert first != some(name, seed=2)


@EACH
def test_requests_are_numbered_in_the_order_of_time(name):
    arrivals = some(name)
    assert [arrival.number for arrival in arrivals] == list(range(SOME))
    assert all(a.time_s <= b.time_s for a, b in itertools.pairwise(arrivals))
    assert all(arrival.prompt_tokens > 0 and arrival.output_tokens > 0 for arrival in arrivals)


@EACH
@pytest.mark.parametrize("block_tokens", [16, 100])
def test_keys_name_all_full_blocks_of_prompt_and_answer(name, block_tokens):
    for arrival in some(name, block_tokens=block_tokens):
        assert len(arrival.keys) == (arrival.prompt_tokens + arrival.output_tokens) // block_tokens
    for arrival in some(name, block_tokens=block_tokens, cache_outputs="off"):
        assert len(arrival.keys) == arrival.prompt_tokens // block_tokens


@EACH
def test_blocks_do_not_change_what_is_asked(name):
    fine, coarse = some(name), some(name, block_tokens=512)
    assert [(a.time_s, a.prompt_tokens, a.output_tokens, a.user) for a in fine] == [
        (a.time_s, a.prompt_tokens, a.output_tokens, a.user) for a in coarse
    ]


@EACH
def test_a_rate_changes_times_alone(name):
    slow, fast = some(name, rate=1), some(name, rate=4)
    assert fast[-1].time_s < slow[-1].time_s
    users = {arrival.user for arrival in slow} & {arrival.user for arrival in fast}
    firsts = [{a.user: a.output_tokens for a in reversed(arrivals)} for arrivals in (slow, fast)]
    assert users
    assert all(firsts[0][user] == firsts[1][user] for user in users)


@EACH
@pytest.mark.parametrize("salt", ["tenant", "user"])
def test_a_salt_separates(name, salt):
    owners: dict[bytes, str | None] = {}
    for arrival in some(name, salt=salt):
        owner = getattr(arrival, salt)
        assert all(owners.setdefault(key, owner) == owner for key in arrival.keys)
    assert len(set(owners.values())) > 1


@EACH
def test_a_stamp_before_everything_leaves_nothing_to_hit(name):
    plain, stamped = some(name), some(name, volatile="head")
    assert hit_tokens(plain, 16) > 0
    assert hit_tokens(stamped, 16) == 0
    longer = {b.prompt_tokens - a.prompt_tokens for a, b in zip(plain, stamped, strict=True)}
    assert longer == {2}


@EACH
def test_a_stamp_before_the_message_spares_the_history_alone(name):
    plain, stamped = some(name), some(name, volatile="before-message")
    assert {b.prompt_tokens - a.prompt_tokens for a, b in zip(plain, stamped, strict=True)} == {2}
    assert 0 < hit_tokens(stamped, 16) <= hit_tokens(plain, 16)


@pytest.mark.parametrize("name", [name for name, one in PRESETS.items() if one.has_turns])
def test_answers_help_the_next_turn(name):
    assert hit_tokens(some(name, rate=1, cache_outputs=False), 16) < hit_tokens(some(name, rate=1), 16)


@pytest.mark.parametrize("name", [name for name, one in PRESETS.items() if one.has_turns])
def test_later_turns_think_when_asked_to(name):
    timed, thought = some(name, replay="timestamps"), some(name, replay="think")
    assert {arrival.think_s for arrival in timed} == {None}
    begun: set[str] = set()
    last_s: dict[str, float] = {}
    for arrival in thought:
        if arrival.session is None:
            continue
        assert (arrival.think_s is None) == (arrival.session not in begun)
        if arrival.think_s is not None:
            assert arrival.time_s >= last_s[arrival.session] + arrival.think_s - 1e-6
        begun.add(arrival.session)
        last_s[arrival.session] = arrival.time_s


def test_tenants_are_dealt_out():
    assert {arrival.tenant for arrival in some("chat", tenants=3)} == {"t0", "t1", "t2"}


@EACH
def test_the_fleet_it_is_for_exists(name):
    one = preset_of(name)
    assert one.defaults.profile in PROFILES
    longest = max(arrival.prompt_tokens + arrival.output_tokens for arrival in some(name))
    assert longest < (one.defaults.blocks - 1) * 16
    assert one.summary
    assert one.source


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("chats", {}, "no preset is named 'chats'; did you mean 'chat'?"),
        ("chat", {"request": 5}, "did you mean 'requests'?"),
        ("chat", {"salt": "tenants"}, "salt can't be 'tenants'; did you mean 'tenant'?"),
        ("chat", {"volatile": "x"}, "It is one of: none, head, before-message"),
        ("chat", {"requests": 0}, "requests can't be 0: give a whole number from 1 on"),
        ("chat", {"requests": "many"}, "requests can't be 'many'"),
        ("chat", {"rate": 0}, "rate can't be 0: give a number above 0"),
        ("chat", {"rate": float("nan")}, "rate can't be nan"),
        ("chat", {"rate": float("inf")}, "rate can't be inf"),
        ("chat", {"cache_outputs": "maybe"}, "cache_outputs can't be 'maybe': say on or off"),
        ("lesson", {"requests": 1_201}, "has 1200 requests, not 1201: ask for fewer or none"),
        ("api", {"replay": "think"}, "leave replay at timestamps"),
    ],
)
def test_what_can_not_be_says_what_to_do(name, options, told):
    with pytest.raises(PresetError) as raised:
        preset(name, **options)
    assert told in str(raised.value)


def test_options_may_come_as_text():
    assert preset("chat", requests="50", rate="2.5", cache_outputs="off").requests == 50


def test_a_million_requests_are_not_in_memory():
    workload = preset("api", requests=1_000_000)
    assert next(iter(workload.arrivals)).number == 0
    assert found(preset("api", requests=200)).requests == 200
