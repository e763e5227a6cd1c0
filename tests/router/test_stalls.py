"""Stalls of the event loop are counted, and only they."""

import asyncio
import time

from router.stalls import STALL_S, Stalls
from tests.fakes import fake_replica, posted, router_over, until


def test_only_what_is_late_by_more_than_a_stall_counts():
    stalls = Stalls()
    stalls._due_s = 100.0
    for late_s, computed_s in (
        (0.0, 0.0),
        (STALL_S / 2, STALL_S / 2),
        (STALL_S * 2, STALL_S * 2),
        (STALL_S * 1.5, STALL_S * 0.9),  # more than half of it, on a machine that others use too
    ):
        stalls.woken(100.0 + late_s, computed_s)
    assert (stalls.busy, stalls.waiting) == (1, 1)
    assert round(stalls.longest_s, 6) == STALL_S * 2


async def test_whatever_holds_the_loop_is_noticed():
    async with Stalls() as stalls:
        await asyncio.sleep(0)
        time.sleep(STALL_S * 2)  # noqa: ASYNC251 -- holding the loop is the point
        await until(lambda: stalls.busy + stalls.waiting == 1)
        assert stalls.longest_s > STALL_S


async def test_it_is_among_the_metrics():
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(up.url)
        exposition = up.metrics.exposition()
    assert b'\nrouter_loop_stalls_total{kind="busy"} ' in exposition
    assert b"\nrouter_loop_longest_stall_seconds " in exposition
