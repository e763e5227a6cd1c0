"""How long a client may take, by one look now and then."""

import asyncio

import pytest

from router.http.patience import BODY, HEAD, KEPT, Patience, Sweep
from tests.fakes import BODY as CALL
from tests.fakes import client_of, fake_replica, post, posted, router_over, until


class Slow:
    def __init__(self, progress) -> None:
        self.now = progress
        self.gone: list[tuple[str, float]] = []

    def progress(self):
        return self.now

    def given_up(self, phase, after_s) -> None:
        self.gone.append((phase, after_s))


PATIENCE = Patience(head_s=10.0, body_idle_s=20.0, keep_s=None)


def looks(client, *steps) -> Sweep:
    """Looks at a client after steps of (seconds, what it is doing by then)."""
    sweep = Sweep(PATIENCE, lambda: [client])
    for now_s, progress in steps:
        client.now = progress
        sweep.looked(now_s)
    return sweep


@pytest.mark.parametrize(
    ("steps", "gone"),
    [
        pytest.param([(0, (HEAD, 1, 0)), (9, (HEAD, 1, 0))], [], id="a head that may still come"),
        pytest.param([(0, (HEAD, 1, 0)), (10, (HEAD, 1, 0))], [(HEAD, 10.0)], id="a head that took too long"),
        pytest.param([(0, (HEAD, 1, 0)), (9, (HEAD, 2, 0)), (18, (HEAD, 2, 0))], [], id="another head"),
        pytest.param([(0, (HEAD, 1, 0)), (9, (BODY, 1, 0)), (28, (BODY, 1, 0))], [], id="a body that rests"),
        pytest.param([(0, (BODY, 1, 5)), (19, (BODY, 1, 6)), (38, (BODY, 1, 7))], [], id="a body that drips"),
        pytest.param([(0, (BODY, 1, 5)), (20, (BODY, 1, 5))], [(BODY, 20.0)], id="a body that stopped"),
        pytest.param([(0, (BODY, 1, 5)), (19, None), (50, (BODY, 2, 5))], [], id="served in between"),
        pytest.param([(0, (KEPT, 1, 0)), (9999, (KEPT, 1, 0))], [], id="no limit"),
    ],
)
def test_who_does_not_move_on_is_given_up(steps, gone):
    client = Slow(None)
    looks(client, *steps)
    assert client.gone == gone


def test_nothing_is_kept_of_who_is_gone_or_busy():
    client = Slow((HEAD, 1, 0))
    sweep = looks(client, (0, (HEAD, 1, 0)), (5, None))
    assert repr(sweep) == "<Sweep 0 clients at rest>"
    sweep = looks(client, (0, (HEAD, 1, 0)), (10, (HEAD, 1, 0)))
    assert repr(sweep) == "<Sweep 0 clients at rest>"


QUICK = {"timeouts__client_head_s": 0.1, "timeouts__client_body_idle_s": 0.1, "timeouts__client_keep_s": 0.1}


@pytest.mark.parametrize(
    ("begun", "phase"),
    [
        (b"POS", "head"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n", "head"),
        (b"GE", "head"),
        (b"GET /v1/models HTTP/1.1\r\nHost: a\r\n", "head"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\n", "head"),
        (post()[:-1], "body"),
        (post(b"", b"Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"") + b"5\r\nab", "body"),
        (b"PUT /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", "body"),
    ],
)
async def test_a_client_that_drips_is_told_and_closed(begun, phase):
    async with fake_replica() as replica, router_over(replica, **QUICK) as up, client_of(up.url) as client:
        whole, end, next_one = begun.rpartition(b"\r\n\r\nGET")
        if end:
            await client.send(whole + b"\r\n\r\n")
            assert (await client.reply()).status == 200
        await client.send(end.lstrip() + next_one)
        said = await client.rest()
        if phase == "head" or begun.startswith(b"POST"):
            assert said.startswith(b"HTTP/1.1 408 ")
            assert f"timeouts.client_{'head_s' if phase == 'head' else 'body_idle_s'} = 0.1 s".encode() in said
        assert replica.seen == []


async def test_a_kept_connection_without_requests_is_closed_quietly():
    async with fake_replica() as replica, router_over(replica, **QUICK) as up, client_of(up.url) as client:
        await client.send(post())
        assert (await client.reply()).status == 200
        assert await client.rest() == b""


async def test_a_request_that_is_served_has_all_the_time_it_needs():
    go = asyncio.Event()

    async def answer(exchange):
        await asyncio.wait_for(go.wait(), 5)
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with (
        fake_replica(answer) as replica,
        router_over(replica, **QUICK) as up,
        client_of(up.url) as client,
        client_of(up.url) as side,
        client_of(up.url) as idle,
    ):
        await client.send(post())
        await side.send(b"GET /v1/other HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: len(replica.seen) == 2)
        assert await idle.rest() == b""  # by now a head would have taken too long
        go.set()
        assert (await client.reply()).status == (await side.reply()).status == 200


async def test_many_that_drip_do_not_hold_up_one_that_does_not():
    async with fake_replica() as replica, router_over(replica, timeouts__client_head_s=None) as up:
        dripping = [await asyncio.open_connection(*up.url.removeprefix("http://").split(":")) for _ in range(200)]
        for _, writer in dripping:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nX: ")
        assert (await posted(up.url, CALL)).status == 200
        for _, writer in dripping:
            writer.transport.abort()
        await until(lambda: len(replica.seen) == 1)
