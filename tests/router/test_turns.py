"""Requests that arrive together, on a clock that only their reading moves."""

import asyncio
import itertools

import pytest

from router.http.messages import Call
from router.turns import TURN_S, Turns
from tests.fakes import fake_replica, router_over


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("cost_s", "most"), [(TURN_S * 0.3, 4), (TURN_S * 3, 1)])
async def test_many_that_come_together_are_spread_over_turns_in_their_order(cost_s, most):
    clock = Clock()
    turns, done, turn = Turns(clock), [], 0

    async def read(number):
        if turns.over:
            await turns.next()
        clock.now_s += cost_s
        done.append((number, turn))

    tasks = [asyncio.ensure_future(read(number)) for number in range(50)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    assert [number for number, _ in done] == list(range(50))
    in_turn = [turn for _, turn in done]
    assert max(map(in_turn.count, in_turn)) == most


async def test_nobody_waits_for_another_turn_without_need():
    turns = Turns(Clock())
    for _ in range(3):
        assert [turns.over for _ in range(20)] == [False] * 20
        await asyncio.sleep(0)


async def test_one_that_leaves_while_it_waits_holds_up_nobody():
    clock = Clock()
    turns = Turns(clock)
    assert not turns.over
    clock.now_s += 1.0
    waiting = asyncio.ensure_future(turns.next())
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.wait_for(turns.next(), 5.0)


async def test_dry_runs_take_turns_too():
    async with fake_replica() as replica, router_over(replica) as up:
        up.gateway._turns = Turns(itertools.count(0.0, TURN_S * 2).__next__)
        call = Call(b"POST", b"/v1/completions", [], b'{"model": "m", "prompt": "hi"}', b"h", "p", {})
        first, second = (asyncio.ensure_future(up.gateway.explained(call)) for _ in range(2))
        await asyncio.sleep(0)
        assert (first.done(), second.done()) == (True, False)
        assert (await asyncio.wait_for(second, 5.0))["route"] == "/v1/completions"


def test_repr():
    assert repr(Turns(Clock())) == "<Turns of 0.01 s>"
