"""The clock: determinism, closed sessions, what the policy is asked and when, and closed-form cases of one replica."""

import gc
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.plugins import load
from policies.types import Choice
from sim.arrivals import Arrival, Workload
from sim.cost import PROFILES
from sim.errors import SimError
from sim.run import Setup, simulate
from sim.setup import Belief
from sim.traces import open_trace

BLOCK = 16
STEADY = replace(
    PROFILES["llama-3.1-8b-h100"],
    **{f"{name}_s": 0.0 for name in ("t0", "cg", "ca", "cd", "ck", "d0", "d1", "front")},
    tw_s=0.01,
)
"""A replica whose every step takes 10 ms."""


def keys(name, tokens):
    return tuple(f"{name:>12}".encode()[:12] + place.to_bytes(4, "little") for place in range(tokens // BLOCK))


def arrival(number, time_s, prompt=40, output=3, name=None, **more):
    return Arrival(number, time_s, prompt, output, keys(name or number, prompt + output), **more)


def workload(*arrivals, **more):
    return Workload("test", BLOCK, arrivals, **more)


def one(**more):
    return Setup(replicas=1, blocks=100, profile=STEADY, **more)


class First:
    """Always the first replica; remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def choose(self, request, replicas):
        self.asked.append((request, replicas))
        return Choice(replicas[0].name, "first")


def conversations(count=120, seed=1, closed=False):
    """Turns of 30 users behind one head; every turn continues the one before."""
    draw = random.Random(seed)
    tokens, arrivals, now_s = {}, [], 0.0
    for number in range(count):
        now_s += draw.expovariate(20)
        user = draw.randrange(30)
        prompt = tokens.get(user, 160) + draw.randrange(20, 200)
        output = draw.randrange(1, 60)
        first = user not in tokens
        tokens[user] = prompt + output
        chain = (keys("head", 160) + keys(f"user {user}", tokens[user]))[: tokens[user] // BLOCK]
        think_s = None if first or not closed else 0.5
        more = {"session": str(user), "user": str(user), "tenant": f"t{user % 3}", "route": "/v1/chat/completions"}
        arrivals.append(Arrival(number, now_s, prompt, output, chain, think_s=think_s, **more))
    return workload(*arrivals)


@pytest.mark.parametrize("policy", ["round-robin", "user-hash", "prefix-aware"])
@pytest.mark.parametrize("belief", [Belief(), Belief("events", lag_s=0.05, lost_fraction=0.1), Belief("truth")])
def test_two_runs_give_identical_bytes(policy, belief):
    setup = Setup(replicas=3, blocks=400, belief=belief)
    first, second = (simulate(conversations(), load(policy, seed=1), setup) for _ in range(2))
    assert first.digest == second.digest
    assert first.reasons == second.reasons
    assert not np.isnan(first.end_s).any()


def test_one_request_alone_takes_a_step_for_its_prompt_and_one_for_every_further_token():
    outcome = simulate(workload(arrival(0, 5.0, output=4)), First(), one())
    assert outcome.sent_s.tolist() == [5.0]
    assert outcome.first_s.tolist() == [pytest.approx(5.01)]
    assert outcome.end_s.tolist() == [pytest.approx(5.04)]


def test_the_front_end_takes_its_time_once_and_keeps_no_step_waiting():
    slow = replace(one(), profile=replace(STEADY, front_s=0.5))
    outcome = simulate(workload(arrival(0, 5.0, output=4), arrival(1, 5.3, output=1)), First(), slow)
    assert outcome.first_s.tolist() == [pytest.approx(5.51), pytest.approx(5.81)]
    assert outcome.end_s.tolist() == [pytest.approx(5.54), pytest.approx(5.81)]


@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=30))
def test_a_replica_of_one_seat_serves_like_a_queue_with_constant_service(gaps):
    """Lindley's recursion: whoever comes while another is served waits for the rest of that service."""
    times = np.cumsum(gaps)
    arrivals = [arrival(number, float(time_s), output=1) for number, time_s in enumerate(times)]
    outcome = simulate(workload(*arrivals), First(), one(max_num_seqs=1))
    free_s = 0.0
    for time_s, end_s in zip(times, outcome.end_s, strict=True):
        free_s = max(free_s, time_s) + 0.01
        assert end_s == pytest.approx(free_s)


def test_the_policy_is_asked_once_for_every_arrival_and_sees_what_is_in_flight():
    policy = First()
    simulate(workload(arrival(0, 0.0), arrival(1, 0.001), arrival(2, 9.0)), policy, one())
    assert [request.id for request, _ in policy.asked] == ["0", "1", "2"]
    assert [replicas[0].in_flight for _, replicas in policy.asked] == [0, 1, 0]
    assert [replicas[0].pending_prefill_tokens for _, replicas in policy.asked] == [0, 40, 0]


def test_a_policy_may_return_just_the_name():
    class Name:
        def choose(self, request, replicas):
            return replicas[-1].name

    outcome = simulate(workload(arrival(0, 0.0)), Name(), replace(one(), replicas=3))
    assert outcome.replica.tolist() == [2]


def test_a_policy_that_invents_a_replica_is_told_so():
    class Inventive:
        def choose(self, request, replicas):
            return Choice("r9", "why not")

    with pytest.raises(SimError, match=r"chose 'r9' for request 0"):
        simulate(workload(arrival(0, 0.0)), Inventive(), one())


def test_a_hit_is_whole_blocks_and_is_told_as_predicted_and_delivered():
    outcome = simulate(workload(arrival(0, 0.0, name="a"), arrival(1, 1.0, name="a")), First(), one())
    assert outcome.cached_tokens.tolist() == [0, 32]
    assert outcome.predicted_tokens.tolist() == [0, 32]
    assert outcome.available_tokens.tolist() == [0, 32]


def test_what_is_available_elsewhere_is_told():
    class Turns:
        def choose(self, request, replicas):
            return replicas[int(request.id)].name

    setup = replace(one(), replicas=2)
    outcome = simulate(workload(arrival(0, 0.0, name="a"), arrival(1, 1.0, name="a")), Turns(), setup)
    assert outcome.available_tokens.tolist() == [0, 32]
    assert outcome.predicted_tokens.tolist() == [0, 0]
    assert outcome.cached_tokens.tolist() == [0, 0]
    assert outcome.duplicated_fraction == pytest.approx(0.5)


def test_a_request_that_reads_no_cache_hits_nothing():
    second = arrival(1, 1.0, name="a", reads_cache=False)
    outcome = simulate(workload(arrival(0, 0.0, name="a"), second), First(), one())
    assert outcome.cached_tokens.tolist() == [0, 0]
    assert outcome.available_tokens.tolist() == [0, 0]


def test_lengths_without_keys_run_without_hits():
    bare = [Arrival(number, 0.0, 40, 3, ()) for number in range(3)]
    outcome = simulate(workload(*bare, has_prefixes=False), load("prefix-aware"), replace(one(), replicas=2))
    assert outcome.cached_tokens.tolist() == [0, 0, 0]
    assert not np.isnan(outcome.end_s).any()


def test_a_closed_turn_waits_for_the_one_before_it_and_then_thinks():
    turns = [
        arrival(0, 0.0, session="s", output=100),
        arrival(1, 0.1, session="s", think_s=2.0),
        arrival(2, 0.2, session="s", think_s=1.0),
    ]
    outcome = simulate(workload(*turns), First(), one())
    first_end, second_end, _ = outcome.end_s.tolist()
    assert outcome.sent_s.tolist() == [0.0, pytest.approx(first_end + 2.0), pytest.approx(second_end + 1.0)]


def test_a_closed_turn_is_not_sent_before_its_own_time():
    turns = [arrival(0, 0.0, session="s"), arrival(1, 60.0, session="s", think_s=1.0)]
    assert simulate(workload(*turns), First(), one()).sent_s.tolist() == [0.0, 60.0]


def test_without_a_think_time_turns_go_by_the_clock():
    turns = [arrival(0, 0.0, session="s", output=100), arrival(1, 0.1, session="s")]
    assert simulate(workload(*turns), First(), one()).sent_s.tolist() == [0.0, 0.1]


def test_rows_stand_in_the_order_of_numbers_however_they_were_sent():
    turns = [
        arrival(0, 0.0, session="s", output=100),
        arrival(1, 0.1, session="s", think_s=9.0, prompt=50),
        arrival(2, 0.2, prompt=60),
    ]
    outcome = simulate(workload(*turns), First(), one())
    assert outcome.number.tolist() == [0, 1, 2]
    assert outcome.prompt_tokens.tolist() == [40, 50, 60]
    assert outcome.sent_s[1] > outcome.sent_s[2]


def test_every_closed_turn_keeps_its_distance():
    load_ = conversations(closed=True)
    outcome = simulate(load_, load("prefix-aware", seed=1), Setup(replicas=2, blocks=400))
    ended = {}
    for turn, sent_s, end_s in zip(load_.arrivals, outcome.sent_s, outcome.end_s, strict=True):
        if turn.session in ended:
            assert sent_s >= max(ended[turn.session] + 0.5, turn.time_s)
        ended[turn.session] = end_s


def test_a_request_no_replica_can_run_is_counted_and_holds_up_nobody():
    turns = [arrival(0, 0.0, prompt=5_000, session="s"), arrival(1, 0.0, session="s", think_s=0.0)]
    outcome = simulate(workload(*turns), First(), one())
    assert outcome.refused == 1
    assert outcome.number.tolist() == [1]


def test_a_workload_whose_times_go_back_is_refused():
    with pytest.raises(SimError, match=r"request 1 arrives at 1.0 s, after one at 2.0 s"):
        simulate(workload(arrival(0, 2.0), arrival(1, 1.0)), First(), one())


def test_arrivals_are_pulled_when_the_clock_reaches_them():
    pulled = []

    def lazily():
        for number in range(1000):
            pulled.append(number)
            yield arrival(number, float(number))

    class Watching(First):
        def choose(self, request, replicas):
            assert pulled[-1] <= int(request.id) + 1
            return replicas[0].name

    simulate(Workload("lazy", BLOCK, lazily()), Watching(), one())
    assert len(pulled) == 1000


def test_an_empty_workload_has_an_empty_outcome():
    outcome = simulate(workload(), First(), one())
    assert len(outcome.number) == 0
    assert outcome.duplicated_fraction is None


def test_progress_is_told_to_the_end_and_garbage_collection_comes_back():
    told = []
    simulate(conversations(600), load("round-robin"), Setup(replicas=2), progress=told.append)
    assert told == [512, 600]
    assert gc.isenabled()


def test_a_trace_replayed_by_think_times_may_be_faster_than_it_was_recorded(tmp_path):
    """The recorded answer took nearly a minute; here the second turn comes when ours has ended and the user thought."""
    file = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": time_ms, "input_length": 40, "output_length": 3, "hash_ids": [1], "session_id": "s", **more}
        for time_ms, more in ((0, {}), (60_000, {"delay": 2_000}), (90_000, {"delay": 1_000}))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = simulate(open_trace(file, replay="think"), First(), one())
    first_end, second_end, _ = outcome.end_s.tolist()
    assert outcome.sent_s.tolist() == [0.0, pytest.approx(first_end + 2.0), pytest.approx(second_end + 1.0)]
