"""Who is let go when: facts about replicas in, an order out. Time is the test's own where it matters."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.types import Replica, Request
from router.admission import FEWEST, PACE_S, Admission, Pace, Room, Turn, admission_of
from router.errors import QueueFull, WaitedTooLong
from router.http.messages import Call
from router.sections import Admission as Rules
from tests.fakes import IDLE, STREAM, chunk, client_of, fake_replica, load_of, ok, post, posted, router_over, until

FOREVER = Turn(0, 30.0)


def request(name: str, tokens: int = 100, model: str = "m", tenant: str = "") -> Request:
    return Request(name, "/v1/completions", model, tenant, None, None, tokens, None, (), 16)


def row(in_flight: int = 0, pending_tokens: int = 0, matched_blocks: int = 0) -> Replica:
    return Replica("r1", in_flight, pending_tokens, matched_blocks, 0, 0, None, 1.0)


class Fleet:
    """One replica that counts what it was sent."""

    def __init__(self, **rules) -> None:
        self.rules = Rules(**({"max_in_flight": 1} | rules))
        self.running: dict[str, Request] = {}
        self.order: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.now_s = 0.0
        self.admission = Admission(self.rules, self.view, lambda: self.now_s)

    def view(self, asked: Request) -> tuple[Replica, ...]:
        mine = [one for one in self.running.values() if one.model == asked.model]
        return (row(len(mine), sum(one.prompt_tokens for one in mine)),)

    def sent(self, name: str, turn: Turn = FOREVER, **given) -> asyncio.Task:
        asked = request(name, **given)
        self.ends[name] = asyncio.Event()

        async def relayed() -> None:
            self.running[name] = asked
            self.order.append(name)
            most = self.rules.max_in_flight
            assert most is None or len(self.view(asked)) <= most
            try:
                await self.ends[name].wait()
            finally:
                del self.running[name]

        return asyncio.ensure_future(self.admission.through(asked, turn, relayed))

    def counts(self) -> tuple[int, int]:
        return self.admission.requests, self.admission.tokens


async def waiting(fleet: Fleet, *requests: int | str) -> None:
    await until(lambda: fleet.admission.requests == len(requests))


async def test_what_fits_never_waits():
    fleet = Fleet(max_in_flight=2)
    tasks = [fleet.sent("a"), fleet.sent("b")]
    await until(lambda: fleet.order == ["a", "b"])
    assert fleet.counts() == (0, 0)
    for end in fleet.ends.values():
        end.set()
    await asyncio.gather(*tasks)


async def test_requests_go_by_priority_and_then_by_arrival():
    fleet = Fleet()
    tasks = [fleet.sent("running")]
    await until(lambda: fleet.order == ["running"])
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1), ("later", 5)):
        tasks.append(fleet.sent(name, Turn(priority, 30.0)))
    await waiting(fleet, 1, 2, 3, 4, 5)
    assert fleet.counts() == (5, 500)
    expected = ["running", "urgent", "first", "second", "late", "later"]
    for place, name in enumerate(expected):
        await until(lambda place=place: len(fleet.order) == place + 1)
        fleet.ends[name].set()
    await asyncio.gather(*tasks)
    assert fleet.order == expected
    assert fleet.counts() == (0, 0)
    assert fleet.admission._queues == {}


async def test_models_wait_apart():
    fleet = Fleet()
    tasks = [fleet.sent("a"), fleet.sent("b")]
    await waiting(fleet, "b")
    tasks.append(fleet.sent("other", model="n"))
    await until(lambda: "other" in fleet.order)
    for end in fleet.ends.values():
        end.set()
    await asyncio.gather(*tasks)


async def test_a_full_queue_is_429_in_requests_and_in_tokens():
    fleet = Fleet(max_queue_requests=2, max_queue_tokens=250)
    tasks = [fleet.sent(name) for name in ("running", "a")]
    await waiting(fleet, "a")
    with pytest.raises(QueueFull, match="1 requests of 100 tokens wait already") as caught:
        await fleet.sent("large", tokens=151)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1)
    tasks.append(fleet.sent("b"))
    await waiting(fleet, "a", "b")
    with pytest.raises(QueueFull, match="2 requests"):
        await fleet.sent("c", tokens=1)
    assert fleet.counts() == (2, 200)
    for end in fleet.ends.values():
        end.set()
    await asyncio.gather(*tasks)


async def test_a_prompt_larger_than_the_queue_may_still_wait_alone():
    fleet = Fleet(max_queue_tokens=10)
    tasks = [fleet.sent("running"), fleet.sent("large", tokens=1000)]
    await waiting(fleet, "large")
    for end in fleet.ends.values():
        end.set()
    await asyncio.gather(*tasks)


async def test_a_request_whose_time_is_over_is_503():
    fleet = Fleet()
    task = fleet.sent("running")
    with pytest.raises(WaitedTooLong) as caught:
        await fleet.sent("impatient", Turn(0, 0.01))
    assert (caught.value.status, caught.value.code) == (503, "queue_timeout")
    with pytest.raises(QueueFull, match="waits 0 s at most"):
        await fleet.sent("at once", Turn(0, 0.0))
    assert fleet.counts() == (0, 0)
    fleet.ends["running"].set()
    await task


async def test_what_would_come_too_late_is_refused_at_once():
    fleet = Fleet()
    tasks = [fleet.sent(name) for name in ("0", "1", "2", "3", "4", "5")]
    await waiting(fleet, 1, 2, 3, 4, 5)
    for name in ("0", "1", "2"):  # 100 tokens a second
        fleet.now_s += 1.0
        fleet.ends[name].set()
        await until(lambda name=name: len(fleet.order) == int(name) + 2)
    assert fleet.counts() == (2, 200)
    with pytest.raises(QueueFull, match=r"in about 2\.0 s") as caught:
        await fleet.sent("late", Turn(0, 1.5))
    assert caught.value.retry_after_s == 2
    urgent = fleet.sent("urgent", Turn(-1, 1.5))  # nobody is before it
    await waiting(fleet, 1, 2, 3)
    for end in fleet.ends.values():
        end.set()
    await asyncio.gather(*tasks, urgent)


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from(["end", "leave", "leave at once"])), max_size=12))
def test_whoever_leaves_the_queue_however_is_no_longer_counted(plan):
    async def run() -> None:
        fleet = Fleet()
        running = fleet.sent("running")
        tasks = [fleet.sent(str(place), Turn(priority, 30.0)) for place, (priority, _) in enumerate(plan)]
        await waiting(fleet, *plan)
        for task, (_, how) in zip(tasks, plan, strict=True):
            if how == "leave":
                task.cancel()
        fleet.ends["running"].set()
        for place, (_, how) in enumerate(plan):
            if how == "leave at once":
                tasks[place].cancel()
            fleet.ends[str(place)].set()
        results = await asyncio.gather(running, *tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert fleet.counts() == (0, 0)
        assert (fleet.admission._queues, fleet.admission._going) == ({}, set())
        assert len(fleet.order) >= 1 + sum(how == "end" for _, how in plan)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("replica", "tokens", "fits"),
    [
        (row(), 10_000, True),  # an idle replica takes any prompt
        (row(in_flight=2), 1, False),
        (row(in_flight=1, pending_tokens=60), 40, True),
        (row(in_flight=1, pending_tokens=60), 41, False),
        (row(in_flight=1, pending_tokens=60, matched_blocks=5), 120, True),  # 80 of them are cached
    ],
)
def test_room(replica, tokens, fits):
    assert bool(Room(100, 2).of(request("a", tokens), (replica,))) is fits


def test_no_limit_on_replicas_is_no_queue():
    assert admission_of(Rules(), lambda _: (), lambda: 0.0) is None


CALL = Call.of(b"POST", b"/v1/completions", [], b"", b"", "")


@pytest.mark.parametrize(
    ("body", "headers", "turn"),
    [
        (None, [], Turn(0, 30.0)),
        ({"priority": -3}, [], Turn(-3, 30.0)),
        ({"priority": True}, [], Turn(0, 30.0)),
        ({"priority": "high"}, [], Turn(0, 30.0)),
        ({}, [(b"X-Request-Timeout", b"2.5")], Turn(0, 2.5)),
        ({}, [(b"X-Request-Timeout", b"3600")], Turn(0, 30.0)),
        ({}, [(b"X-Request-Timeout", b"-1")], Turn(0, 0.0)),
        ({}, [(b"X-Request-Timeout", b"soon")], Turn(0, 30.0)),
        ({}, [(b"X-Request-Timeout", b"nan")], Turn(0, 30.0)),
    ],
)
def test_what_a_call_says_of_its_urgency(body, headers, turn):
    call = Call.of(CALL.method, CALL.target, headers, b"", b"", "")
    assert Fleet().admission.turn(call, body) == turn


def test_the_pace_of_a_queue_is_unknown_at_first_and_forgets_old_times():
    pace = Pace()
    pace.waits(100.0, anew=True)
    for second in range(1, FEWEST):
        pace.left(10, 100.0 + second)
    assert pace.needed_s(100, 103.0) is None
    pace.left(10, 103.0)
    assert pace.needed_s(100, 103.0) == pytest.approx(10.0)
    for second in range(1, 10):
        pace.left(1000, 103.0 + second * PACE_S)
    assert pace.needed_s(1000, 103.0 + 9 * PACE_S) == pytest.approx(PACE_S, rel=0.5)
    pace.waits(1000.0, anew=True)
    assert pace.needed_s(100, 1000.0) is None


def test_repr():
    assert repr(Fleet().admission) == "<Admission 0 requests of 0 tokens wait>"


@pytest.mark.parametrize(("quantum_tokens", "place"), [(None, 9), (100, 1), (300, 3)])
async def test_one_tenants_flood_waits_for_itself(quantum_tokens, place):
    fleet = Fleet(fair_quantum_tokens=quantum_tokens)
    tasks = [fleet.sent("running", tenant="flood")]
    await until(lambda: fleet.order == ["running"])
    tasks += [fleet.sent(f"flood-{number}", tenant="flood") for number in range(8)]
    await waiting(fleet, *range(8))
    tasks.append(fleet.sent("calm", tenant="calm"))
    await waiting(fleet, *range(9))
    for count in range(1, 10):
        fleet.ends[fleet.order[-1]].set()
        await until(lambda count=count: len(fleet.order) == count + 1)
    fleet.ends[fleet.order[-1]].set()
    await asyncio.gather(*tasks)
    assert fleet.order.index("calm") - 1 <= place
    assert [name for name in fleet.order if name != "calm"] == ["running", *(f"flood-{n}" for n in range(8))]


async def test_priority_comes_before_a_tenants_turn_and_refused_requests_leave_nothing():
    fleet = Fleet(fair_quantum_tokens=100, max_queue_requests=2)
    tasks = [fleet.sent("running", tenant="a")]
    await until(lambda: fleet.order == ["running"])
    with pytest.raises(QueueFull):
        await fleet.sent("impatient", Turn(0, 0.0), tenant="b")
    tasks += [fleet.sent("calm", tenant="b"), fleet.sent("urgent", Turn(-1, 30.0), tenant="a", tokens=5000)]
    await waiting(fleet, "calm", "urgent")
    for count in range(1, 3):
        fleet.ends[fleet.order[-1]].set()
        await until(lambda count=count: len(fleet.order) == count + 1)
    fleet.ends[fleet.order[-1]].set()
    await asyncio.gather(*tasks)
    assert fleet.order == ["running", "urgent", "calm"]


# -- over real sockets -------------------------------------------------------------------------------------------------


async def test_a_burst_of_one_prompt_fills_replicas_and_then_waits_its_turn():
    release = asyncio.Event()

    async def slow(exchange):
        await release.wait()
        await exchange.send(ok())

    settings = {"admission__max_in_flight": 4, "admission__max_queue_requests": 2, "policy__name": "prefix-aware"}
    body = b'{"model":"m","prompt":"%b"}' % (b"one prompt for all " * 100)
    async with fake_replica(slow) as a, fake_replica(slow) as b, router_over(a, b, **settings) as up:
        tasks = [asyncio.ensure_future(posted(up.url, body)) for _ in range(10)]
        await until(lambda: "router_queue_requests 2.0" in up.metrics.exposition().decode())
        await until(lambda: [len(one.seen) for one in (a, b)] == [4, 4])
        refused = await posted(up.url, body)
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert int(refused.values(b"retry-after")[0]) >= 1
        hurried = await posted(up.url, body, b"X-Request-Timeout: 0")
        assert (hurried.status, hurried.error["code"]) == (429, "queue_full")
        release.set()
        assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
        assert len(a.seen) + len(b.seen) == 10
        assert load_of(up) == IDLE


async def test_a_first_token_makes_room_where_only_prefill_is_limited():
    begin, end = asyncio.Event(), asyncio.Event()

    async def answer(exchange):
        await begin.wait()
        await exchange.send(STREAM + chunk(b'data: {"choices":[]}\n\n'))
        await end.wait()
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with fake_replica(answer) as replica, router_over(replica, admission__max_pending_tokens=1) as up:
        tasks = [asyncio.ensure_future(posted(up.url)) for _ in range(3)]
        await until(lambda: up.gateway._admission.requests == 2 and len(replica.seen) == 1)
        begin.set()
        await until(lambda: len(replica.seen) == 3)  # and none has ended
        end.set()
        assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
        assert load_of(up) == IDLE


async def test_a_replica_that_goes_leaves_nobody_in_the_queue():
    async def slow(exchange):
        await exchange.left()

    settings = {"admission__max_in_flight": 1, "health__interval_s": 0.05}
    async with fake_replica(slow) as replica, router_over(replica, **settings) as up, client_of(up.url) as client:
        await client.send(post())
        await until(lambda: len(replica.seen) == 1)
        waiting = asyncio.ensure_future(posted(up.url))
        await until(lambda: up.gateway._admission.requests == 1)
        replica.healthy = False
        assert (await waiting).error["code"] == "no_replica_available"
