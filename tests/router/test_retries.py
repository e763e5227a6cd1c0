"""What is sent to another replica and what is not, over real sockets; how much of it, by the budget."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.retries import FLOOR, WINDOW_S, Budget, gave_up
from tests.fakes import (
    BODY,
    IDLE,
    STREAM,
    chunk,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    posted,
    router_over,
    said,
    unchunked,
    until,
)

GOOD = b'{"good":true}'
DRAINING = (
    b'{"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":"","logprobs":null,'
    b'"finish_reason":"abort","stop_reason":null}],"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0}}'
)
ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
NO_USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0}}\n\n'
DONE = b"data: [DONE]\n\n"
DIED = b'data: {"error": {"message": "EngineCore", "type": "InternalServerError", "param": null, "code": 500}}\n\n'


def stream(*events: bytes) -> bytes:
    return STREAM + b"".join(map(chunk, events)) + chunk(b"")


def failures(up, name: str = "r1") -> dict[str, int]:
    return next(state.failures for state in up.watcher.states() if state.name == name)


async def outcome(answer: bytes, body: bytes = BODY, *fields: bytes, path: bytes = b"/v1/completions", **settings):
    """One request that `answer` meets on the first of two replicas: its reply, requests elsewhere, failures."""
    async with fake_replica(answer) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good, **settings) as up:
        reply = await posted(up.url, body, *fields, path=path)
        assert len(bad.seen) == 1
        await until(lambda: load_of(up) == IDLE)
        return reply, len(good.seen), failures(up)


@pytest.mark.parametrize(
    ("status", "elsewhere", "failed"),
    [
        (b"400 Bad Request", 0, {}),
        (b"401 Unauthorized", 0, {}),
        (b"404 Not Found", 0, {}),
        (b"422 Unprocessable", 0, {}),
        (b"429 Too Many Requests", 1, {}),
        (b"503 Service Unavailable", 1, {}),
        (b"500 Internal Server Error", 1, {"status_5xx": 1}),
        (b"502 Bad Gateway", 1, {"status_5xx": 1}),
        (b"504 Gateway Timeout", 1, {"status_5xx": 1}),
    ],
)
async def test_what_each_status_means(status, elsewhere, failed):
    reply, asked, counted = await outcome(ok(b"{}", status=status))
    assert (reply.status, reply.body) == ((200, GOOD) if elsewhere else (int(status[:3]), b"{}"))
    assert (asked, counted) == (elsewhere, failed)


@pytest.mark.parametrize("status", [b"429 Busy", b"503 Busy", b"500 Broken"])
async def test_the_second_such_answer_is_passed_on_as_it_came(status):
    second = ok(b"second", b"Retry-After: 7", status=status)
    async with (
        fake_replica(ok(b"first", status=status)) as a,
        fake_replica(second) as b,
        fake_replica(second) as c,
        router_over(a, b, c) as up,
    ):
        reply = await posted(up.url)
        assert (reply.status, reply.body, reply.values(b"retry-after")) == (int(status[:3]), b"second", [b"7"])
        assert len(a.seen) + len(b.seen) + len(c.seen) == 2
        await until(lambda: load_of(up) == IDLE)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ok(DRAINING), "aborted"),
        (stream(DONE), "aborted"),
        (stream(NO_USAGE, DONE), "aborted"),
        (stream(ROLE, NO_USAGE, DONE), "aborted"),
        (stream(DIED, DONE), "error_event"),
        (stream(b"event: error\ndata: {}\n\n"), "error_event"),
        (STREAM, "cut"),
        (STREAM + b"40\r\n", "cut"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "cut"),
        (b"HTTP/1.1 200 OK\r\n", "cut"),
        (b"", "lost"),
    ],
)
async def test_a_200_that_is_none_goes_elsewhere_while_nothing_was_sent(answer, kind):
    async def cut(exchange):
        await exchange.send(answer)
        exchange.close()

    async with fake_replica(cut) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good) as up:
        reply = await posted(up.url)
        assert (reply.status, reply.body) == (200, GOOD)
        assert (len(bad.seen), len(good.seen)) == (1, 1)
        assert failures(up) == {kind: 1}
        await until(lambda: load_of(up) == IDLE)


@pytest.mark.parametrize(
    "answer",
    [
        stream(b'data: {"error": {"message": "too long", "code": 400}}\n\n', DONE),
        stream(b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"no"}}\n\n'),
        stream(ROLE, b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', DONE),
        stream(ROLE, b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', NO_USAGE, DONE),
        stream(b'data: {"choices":[{"index":0,"text":"an echo"}]}\n\n', NO_USAGE, DONE),
        stream(b'data: {"choices":[{"text":"a"}]}\n\n', DIED, DONE),
        stream(b"data: 1\n\n"),
        stream(b": ping\n\n", DONE),
    ],
)
async def test_an_answer_is_never_asked_for_twice(answer):
    reply, asked, _ = await outcome(answer)
    assert (reply.status, asked) == (200, 0)
    assert unchunked(reply.body) == unchunked(answer[len(STREAM) :])


@pytest.mark.parametrize("length", [1, 3, 20, 70])
async def test_an_error_event_is_seen_however_it_is_cut(length):
    answer = stream(DIED, DONE)

    async def slow(exchange):
        for place in range(0, len(answer), length):
            await exchange.send(answer[place : place + length])
            await asyncio.sleep(0)

    async with fake_replica(slow) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good) as up:
        assert (await posted(up.url)).body == GOOD
        assert len(good.seen) == 1


async def test_a_mid_stream_error_event_is_passed_on_and_counts():
    reply, asked, counted = await outcome(stream(ROLE + b'data: {"choices":[{"text":"a"}]}\n\n', DIED, DONE))
    assert (reply.status, asked, counted) == (200, 0, {"error_event": 1})
    assert DIED in unchunked(reply.body)


async def test_a_path_that_may_have_done_something_is_not_asked_for_again():
    reply, asked, _ = await outcome(ok(b"{}", status=b"500 Broken"), path=b"/v1/files")
    assert (reply.status, asked) == (500, 0)
    reply, asked, _ = await outcome(ok(b"{}", status=b"503 Busy"), path=b"/v1/files")
    assert (reply.status, asked) == (200, 1)

    async def cut(exchange):
        exchange.cut()

    async with fake_replica(cut) as bad, fake_replica() as good, router_over(bad, good) as up:
        assert (await posted(up.url, path=b"/v1/files")).status == 502
        assert (len(bad.seen), len(good.seen)) == (1, 0)


async def test_each_attempt_has_a_request_id_of_its_own():
    busy = ok(b"{}", status=b"503 Busy")
    async with fake_replica(busy) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good) as up:
        await posted(up.url, BODY, b"X-Request-Id: abc", b"X-Other: 1")
        assert bad.seen[0].values(b"x-request-id") == [b"abc"]
        assert good.seen[0].values(b"x-request-id") == [b"abc-retry-1"]
        assert good.seen[0].body == BODY
        assert good.seen[0].values(b"x-other") == [b"1"]


async def test_no_retries_means_none():
    reply, asked, _ = await outcome(ok(b"{}", status=b"503 Busy"), retries__most=0)
    assert (reply.status, asked) == (503, 0)


async def test_a_busy_replica_is_left_alone_as_long_as_it_says_and_used_again_after():
    answers = iter([ok(b"{}", b"Retry-After: 1", status=b"429 Busy")])

    async def once(exchange):
        await exchange.send(next(answers, ok(GOOD)))

    async with fake_replica(once) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good) as up:
        for _ in range(6):
            assert (await posted(up.url)).status == 200
        assert (len(bad.seen), len(good.seen)) == (1, 6)
        up.gateway._retries.aside._until_s.clear()
        for _ in range(2):
            await posted(up.url)
        assert len(bad.seen) == 2


async def test_a_busy_fleet_is_asked_all_the_same():
    async with fake_replica(ok(b"{}", status=b"503 Busy")) as replica, router_over(replica) as up:
        for _ in range(3):
            assert (await posted(up.url)).status == 503
        replica.answer = said(ok(GOOD))
        assert (await posted(up.url)).status == 200


async def test_a_favourite_that_answers_500_while_its_health_is_good_is_left_alone():
    body = b'{"model":"m","prompt":"%b"}' % (b"the same long prefix " * 100)
    settings = {"policy__name": "prefix-aware"}
    async with fake_replica() as a, fake_replica() as b, fake_replica() as c, router_over(a, b, c, **settings) as up:
        await posted(up.url, body)
        (favourite,) = [one for one in (a, b, c) if one.seen]
        favourite.answer = said(ok(b"{}", status=b"500 Broken"))
        assert [(await posted(up.url, body)).status for _ in range(50)] == [200] * 50
        assert len(favourite.seen) - 1 <= 5
        favourite.answer = said(ok(GOOD))
        async with asyncio.timeout(10):
            while up.watcher.states()[0].state != "open":
                await posted(up.url, body)


async def test_a_draining_replica_is_out_with_its_first_sign():
    async with fake_replica(ok(DRAINING)) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good) as up:
        assert (await posted(up.url)).body == GOOD
        assert not up.watcher.states()[0].usable
        assert "shutting down" in up.watcher.states()[0].reason


async def test_a_replica_on_trial_gets_one_request_at_a_time():
    release = asyncio.Event()

    async def slow(exchange):
        await release.wait()
        await exchange.send(ok(GOOD))

    settings = {"health__interval_s": 60, "timeouts__hung_s": None}
    async with fake_replica(slow) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good, **settings) as up:
        assert up.watcher.silenced("r1", "hangs")
        await until(lambda: up.watcher.trials == {"r1"})
        tasks = [asyncio.ensure_future(posted(up.url)) for _ in range(20)]
        await until(lambda: len(good.seen) == 19)
        assert len(bad.seen) == 1
        release.set()
        assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
        assert up.watcher.states()[0].state == "open"
        assert up.watcher.trials == set()


async def test_a_stream_that_begins_ends_a_trial():
    async def answer(exchange):
        await exchange.send(STREAM + chunk(ROLE))
        await exchange.left()

    async with fake_replica(answer) as bad, fake_replica(ok(GOOD)) as good, router_over(bad, good) as up:
        assert up.watcher.silenced("r1", "hangs")
        await until(lambda: up.watcher.trials == {"r1"})
        async with client_of(up.url) as client:
            for _ in range(2):
                await client.send(post())
                await client.head()
                if bad.seen:
                    break
                await client.exactly(len(GOOD))
            assert up.watcher.states()[0].state == "open"


async def test_what_exceeds_the_budget_is_passed_on_and_counted():
    busy = ok(b"{}", status=b"503 Busy")
    async with fake_replica(busy) as a, fake_replica(busy) as b, router_over(a, b, retries__budget_fraction=0.0) as up:
        statuses = [(await posted(up.url)).status for _ in range(FLOOR + 5)]
        assert statuses == [503] * (FLOOR + 5)
        assert len(a.seen) + len(b.seen) == 2 * FLOOR + 5
        assert "router_retries_denied_total 5.0" in up.metrics.exposition().decode()


@example([("spent", pause_s) for pause_s in (0.0,) * 7 + (6.0, 8.0, 8.0, 8.0)], 0.0)  # the first are too old at last
@given(
    st.lists(st.tuples(st.sampled_from(["asked", "spent"]), st.floats(0, 8)), max_size=200),
    st.floats(0, 1),
)
def test_retries_are_never_more_than_their_share_and_a_few(facts, fraction):
    budget, now_s, asked, spent = Budget(fraction), 0.0, [], []
    for fact, pause_s in facts:
        now_s += pause_s
        if fact == "asked":
            budget.asked(now_s)
            asked.append(now_s)
        elif budget.spent(now_s):
            spent.append(now_s)
            half = [when for when in spent if when > now_s - WINDOW_S / 2]
            assert len(half) <= FLOOR + fraction * sum(when > now_s - WINDOW_S for when in asked) + 1
        else:
            assert sum(when > now_s - WINDOW_S for when in spent) >= FLOOR


def test_the_budget_forgets():
    budget = Budget(0.5)
    for _ in range(100):
        budget.asked(0.0)
    assert sum(budget.spent(1.0) for _ in range(100)) == FLOOR + 50
    assert budget.spent(WINDOW_S / 2) is False
    assert sum(budget.spent(2 * WINDOW_S) for _ in range(100)) == FLOOR


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_an_answer_or_not_without_a_fault(first, whole):
    assert gave_up(first, whole) in (None, "aborted", "error_event")
