"""The order of phases, times that follow from the seed, and a cold phase that is cold."""

import asyncio
import itertools

import pytest

from router.bench.about import about
from router.bench.driver import connected
from router.bench.groups import Made, Shape
from router.bench.phases import Plan, Side, asks, due_times, parts, run
from router.bench.results import Target, figures
from tests.answers import SIDE
from tests.emulated import emulated

SHAPE = Shape("tiny", endpoint="completions", prefix_tokens=64, question_tokens=16, max_tokens=2)
GROUPS = (Made("shared", SHAPE, 2), Made("unique", SHAPE, None))
B = Side("B", SIDE.about, GROUPS, ())
A = Side("A", SIDE.about, GROUPS, ())


def plan(**changes):
    given = {"run": "r", "rates": (200.0,), "requests": 12, "duration_s": None, "seed": 1, "in_flight": 1}
    return Plan(**(given | changes))


def labels(planned):
    return [f"{part.side.name}{part.turn} {part.group.name} {part.rate:g} {part.name}" for part in planned]


def test_every_rate_and_group_has_a_cold_and_then_a_warm_phase():
    assert labels(parts([A], plan(rates=(2.0, 4.0)))) == [
        f"A0 {group} {rate} {name}" for group in ("shared", "unique") for rate in (2, 4) for name in ("cold", "warm")
    ]


def test_two_sides_take_turns():
    planned = list(parts([A, B], plan(interleaved=True)))
    order = [(part.side.name, part.turn) for part in planned if (part.group.name, part.name) == ("unique", "warm")]
    assert order == [("A", 0), ("B", 0), ("B", 1), ("A", 1)]
    assert len(planned) == 2 * 4 * 2


@pytest.mark.parametrize("interleaved", [False, True])
def test_warm_repeats_cold_and_nothing_else_shares_a_mark(interleaved):
    planned = list(parts([A, B], plan(interleaved=interleaved, rates=(2.0, 4.0))))
    for cold, warm in zip(planned[::2], planned[1::2], strict=True):
        assert (cold.name, warm.name) == ("cold", "warm")
        assert list(asks(cold)) == list(asks(warm))
    assert len({part.mark for part in planned}) == len(planned) / 2
    other = {part.mark for part in parts([A, B], plan(interleaved=interleaved, rates=(2.0, 4.0), run="other"))}
    assert other.isdisjoint(part.mark for part in planned)


def test_sides_share_times_and_only_on_request_prompts():
    for shared in (False, True):
        planned = list(parts([A, B], plan(interleaved=True, shared_prompts=shared)))
        of = {side: [p for p in planned if (p.side.name, p.turn) == (side, 1)] for side in "AB"}
        assert [part.due_s for part in of["A"]] == [part.due_s for part in of["B"]]
        assert ([part.mark for part in of["A"]] == [part.mark for part in of["B"]]) is shared


def test_times_are_poisson_from_0_and_end_with_the_earlier_limit():
    times = due_times(50.0, 2000, None, "s")
    assert times == due_times(50.0, 2000, None, "s") != due_times(50.0, 2000, None, "t")
    assert times[0] == 0
    gaps = [late - early for early, late in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.25)
    assert all(time_s < 3 for time_s in due_times(50.0, None, 3.0, "s"))
    assert len(due_times(50.0, 5, 3.0, "s")) == 5


def test_a_group_with_times_of_its_own_keeps_them_unless_a_rate_is_given():
    own = Made("own", SHAPE, None, requests=3, times_s=(0.0, 5.0, 9.0))
    side = Side("A", SIDE.about, (own, GROUPS[1]), ())
    cold, _, other, _ = parts([side], plan(rates=(), duration_s=6.0))
    assert (cold.rate, cold.due_s, cold.label) == (None, (0.0, 5.0), "A own own times cold")
    assert other.rate == 2.0
    assert len(next(iter(parts([side], plan(rates=(1e6,))))).due_s) == 3


async def measured(emulator, planned, wanted, done):
    async with connected({}, 5.0) as client:
        await run(client, planned, wanted, lambda part: lambda answer: None, done, counting=client)


async def test_cold_is_cold_and_the_figures_are_the_engines():
    emulator = await emulated()
    try:
        async with connected({}, 5.0) as client:
            found = await about(client, emulator.url, "")
        side = Side("A", found, GROUPS, (emulator.url,))
        done = []
        for name in ("one run", "another run"):
            await measured(emulator, list(parts([side], plan(run=name))), plan(run=name), done)
        counters = emulator.engine.counters
    finally:
        await emulator.close()
    rows = [figures([phase], Target()) for phase in done]
    assert [row.good for row in rows] == [12] * 8
    # 80 tokens are 5 blocks, of which the last token's is never found; two shared prefixes of 4 blocks.
    assert [row.cached_tokens for row in rows] == [10 * 64, 12 * 64, 0, 12 * 64] * 2
    assert [phase.counted.hit_tokens for phase in done] == [row.cached_tokens for row in rows]
    assert sum(row.cached_tokens for row in rows) == counters.hit_tokens
    assert sum(row.prompt_tokens for row in rows) == counters.prompt_tokens == 8 * 12 * 80


async def test_a_run_that_is_cancelled_keeps_what_it_has():
    emulator = await emulated()
    done = []
    try:
        async with connected({}, 5.0) as client:
            side = Side("A", await about(client, emulator.url, ""), GROUPS, ())
            heard = 0

            def watch(part):
                def told(answer):
                    nonlocal heard
                    heard += 1
                    if heard == 15:
                        work.cancel()

                return told

            work = asyncio.create_task(run(client, list(parts([side], plan())), plan(), watch, done, counting=client))
            with pytest.raises(asyncio.CancelledError):
                await work
    finally:
        await emulator.close()
    assert [(phase.part.name, phase.complete, len(phase.answers)) for phase in done] == [
        ("cold", True, 12),
        ("warm", False, 3),
    ]
