"""The open loop over real sockets: figures the server counted too, a guard that shows, and every way to fail."""

import asyncio
import json

import pytest

from router.bench.driver import LATE_S, Answer, Ask, connected, driven
from router.usage import Usage
from tests.emulated import COMPLETIONS, LONG, emulated
from tests.fakes import STREAM, Exchange, chunk, fake_replica, ok


def ask(due_s=0.0, prompt=LONG, **body):
    told = {"prompt": prompt, "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}} | body
    return Ask(due_s, COMPLETIONS, json.dumps(told).encode(), {"X-User-Id": "u"})


async def drive(url, *asks, in_flight=None, timeout_s=5.0, headers=None):
    answers = []
    async with connected(headers or {}, timeout_s) as client:
        await driven(client, url, asks, answers.append, in_flight=in_flight)
    return sorted(answers, key=lambda answer: answer.number)


async def test_what_an_answer_tells_is_what_the_engine_counted():
    emulator = await emulated()
    try:
        answers = await drive(
            emulator.url, ask(prompt="x" + LONG), *[ask(0.01 * place) for place in range(6)], in_flight=1
        )
        counters = emulator.engine.counters
    finally:
        await emulator.close()
    assert [answer.error for answer in answers] == [""] * 7
    assert sum(answer.usage.prompt_tokens for answer in answers) == counters.prompt_tokens
    assert sum(answer.usage.cached_tokens for answer in answers) == counters.cached_tokens > 0
    assert {answer.usage.output_tokens for answer in answers} == {5}
    for answer in answers:
        assert answer.due_s <= answer.sent_s <= answer.first_s <= answer.end_s
        assert answer.tpot_s == pytest.approx((answer.end_s - answer.first_s) / 4)


def test_times_count_from_when_a_request_was_due():
    answer = Answer(0, 1.0, 1.0 + LATE_S + 0.01, 1.5, 2.5, "", Usage(10, None, 1))
    assert (answer.ttft_s, answer.e2e_s, answer.is_late) == (0.5, 1.5, True)
    assert answer.tpot_s is None  # one token has no next one
    assert Answer(0, 1.0, 1.0 + LATE_S / 2, None, 2.5, "").is_late is False


async def test_requests_are_sent_whether_or_not_others_were_answered():
    together = asyncio.Barrier(5)

    async def script(exchange: Exchange):
        await together.wait()  # nobody is answered until all five are there
        await exchange.send(ok(b'{"choices":[]}'))

    async with fake_replica(script) as replica:
        answers = await drive(replica.url, *[ask()] * 5)
    assert [answer.error for answer in answers] == [""] * 5
    assert {answer.ttft_s for answer in answers} == {None}  # not streamed: nobody saw a first token
    assert replica.seen[0].values(b"X-User-Id") == [b"u"]


async def test_the_guard_holds_back_and_the_wait_counts():
    under_way = most = 0
    both = asyncio.Barrier(2)

    async def script(exchange: Exchange):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await both.wait()
        under_way -= 1
        await exchange.send(ok(b"{}"))

    async with fake_replica(script) as replica:
        answers = await drive(replica.url, *[ask()] * 6, in_flight=2)
    assert most == 2
    first_end_s = min(answers[0].end_s, answers[1].end_s)
    assert all(answer.sent_s >= first_end_s for answer in answers[2:])
    assert answers[5].e2e_s == answers[5].end_s  # it was due at 0


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (ok(b"{}", status=b"429 Too Many Requests"), "http 429"),
        (ok(b"{}", b"Location: /", status=b"307 Temporary Redirect"), "http 307"),
        (STREAM + chunk(b'data: {"choices":[{"text":"x"}]}\n\n'), "cut"),
        (STREAM + chunk(b'data: {"choices":[{"text":"x"}]}\n\n') + b"0\r\n\r\n", "cut"),
        (STREAM + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n", "no token"),
        (b"what is this\r\n\r\n", "cut"),
        (b"", "cut"),
    ],
)
async def test_a_failure_is_named(told, error):
    async def script(exchange: Exchange):
        await exchange.send(told)
        exchange.close()

    async with fake_replica(script) as replica:
        (answer,) = await drive(replica.url, ask())
    assert answer.error == error


async def test_a_server_that_hangs_or_is_not_there_is_told_apart():
    async def script(exchange: Exchange):
        await exchange.left()

    async with fake_replica(script) as replica:
        (hung,) = await drive(replica.url, ask(), timeout_s=0.2)
    (gone,) = await drive(replica.url, ask())
    assert (hung.error, gone.error) == ("timeout", "not connected")


async def test_what_is_under_way_is_given_up_when_cancelled():
    arrived = asyncio.Event()

    async def script(exchange: Exchange):
        if len(replica.seen) < 2:
            await exchange.send(ok(b"{}"))
            return
        arrived.set()
        await exchange.left()

    answers = []
    async with fake_replica(script) as replica, connected({}, 5.0) as client:
        work = asyncio.create_task(driven(client, replica.url, [ask()] * 3, answers.append, in_flight=1))
        await asyncio.wait_for(arrived.wait(), 5)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert [answer.number for answer in answers] == [0]


async def test_every_request_carries_the_headers():
    async with fake_replica() as replica:
        await drive(replica.url, ask(), headers={"Authorization": "Bearer k"})
    assert replica.seen[0].values(b"Authorization") == [b"Bearer k"]
