"""How conversations become requests: who is next, what a prompt is made of, and what the options change."""

import itertools

from sim.prompts_of_runs import Prompt
from sim.sessions import Opening, Options, Turn, paced, started

TWO_TURNS = (Turn(((10, 30),), 20), Turn(((11, 40),), 10, think_s=5.0, took_s=2.0))


def opening(user: int = 0, turns: tuple[Turn, ...] = TWO_TURNS) -> Opening:
    return Opening(((1, 64),), turns, user)


def test_the_second_turn_is_the_first_one_its_answer_and_more():
    first, second = paced(iter([opening()]), [0.0, 10.0], Options(2, 1.0))
    assert (first.prompt_tokens, first.output_tokens) == (94, 20)
    assert (second.prompt_tokens, second.output_tokens) == (94 + 20 + 40, 10)
    assert second.keys[: len(first.keys)] == first.keys
    assert first.session == second.session == "s0"


def test_a_paced_request_is_whoever_is_due_else_a_new_one():
    arrivals = list(paced((opening(user) for user in itertools.count()), [0, 1, 8, 9], Options(4, 1.0)))
    assert [arrival.user for arrival in arrivals] == ["u0", "u1", "u0", "u1"]
    early = list(paced((opening(user) for user in itertools.count()), [0, 1, 6, 9], Options(4, 1.0)))
    assert [arrival.user for arrival in early] == ["u0", "u1", "u2", "u0"]


def test_started_conversations_go_on_by_their_gaps():
    starts = ((float(user), opening(user)) for user in itertools.count())
    arrivals = list(started(((3 * start_s, one) for start_s, one in starts), Options(6, 1.0)))
    assert [(arrival.user, arrival.time_s) for arrival in arrivals] == [
        ("u0", 0.0), ("u1", 3.0), ("u2", 6.0), ("u0", 7.0), ("u3", 9.0), ("u1", 10.0),
    ]  # fmt: skip


def test_thinking_leaves_out_how_long_the_answer_took():
    starts = ((1_000.0 * place, opening()) for place in itertools.count())
    arrivals = list(started(starts, Options(2, 1.0, replay="think")))
    assert [(arrival.time_s, arrival.think_s) for arrival in arrivals] == [(0.0, None), (5.0, 5.0)]


def test_one_turn_is_no_session():
    (arrival,) = paced(iter([opening(turns=TWO_TURNS[:1])]), [0.0], Options(1, 1.0))
    assert arrival.session is None


def test_what_is_forgotten_goes_back_to_the_head():
    turns = (TWO_TURNS[0], Turn(((12, 50),), 10, forgets=True), Turn(((13, 16),), 1))
    arrivals = list(paced(iter([opening(turns=turns)]), [0.0, 1.0, 2.0], Options(3, 1.0)))
    assert [arrival.prompt_tokens for arrival in arrivals] == [94, 114, 140]
    head = Prompt.root(16).grown([(1, 64)]).keys
    assert arrivals[1].keys[:4] == head
    assert arrivals[2].keys[: len(arrivals[1].keys)] == arrivals[1].keys


def test_a_stamp_at_the_head_also_forgets():
    turns = (TWO_TURNS[0], Turn(((12, 50),), 10, forgets=True))
    arrivals = list(paced(iter([opening(turns=turns)]), [0.0, 1.0], Options(2, 1.0, volatile="head")))
    assert [arrival.prompt_tokens for arrival in arrivals] == [96, 116]
    assert set(arrivals[0].keys).isdisjoint(arrivals[1].keys)


def test_tenants_are_dealt_out_unless_they_are_given():
    mine = Opening((), TWO_TURNS[:1], 7)
    given = Opening((), TWO_TURNS[:1], 7, tenant="acme")
    arrivals = paced(iter([mine, given]), [0.0, 1.0], Options(2, 1.0, tenants=3))
    assert [arrival.tenant for arrival in arrivals] == ["t1", "acme"]
