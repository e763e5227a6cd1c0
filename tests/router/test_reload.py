"""A configuration that is read again: what changes, what waits for a restart, and what a mistake does: nothing."""

import asyncio

import pytest

from policies.types import Choice
from router.config import load
from router.errors import ConfigError
from router.reload import LIVE, InForce
from router.settings import settings
from tests.fakes import BODY, IDLE, STREAM, chunk, client_of, fake_replica, load_of, post, posted, router_over, until


def config(*replicas, **more):
    wanted = {
        "replicas": ",".join(replica.url for replica in replicas),
        "listen.port": 0,
        "admin.port": 0,
        "admin.allowed_hosts": ["router.test"],
        "tokenizer.where": "text",
        "policy.name": "round-robin",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return load(flags={name: ("test", value) for name, value in wanted.items()})[0]


def test_what_is_told_to_be_live_is_a_setting():
    assert set(LIVE) <= {setting.name for setting in settings()}


async def test_replicas_come_and_go_without_a_request_lost():
    go = asyncio.Event()

    async def answer(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.wait_for(go.wait(), 5)
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with fake_replica(answer) as old, fake_replica() as new, router_over(old) as up, client_of(up.url) as client:
        await client.send(post())
        await client.head()
        assert await up.reload.reloaded(lambda: config(new))
        await until(lambda: up.fleet.is_open(up.fleet.replicas()[0]))
        assert (await posted(up.url)).status == 200
        assert len(new.seen) == 1
        go.set()
        await client.to(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await until(lambda: load_of(up) == IDLE)


async def test_what_becomes_of_a_clients_key_changes_at_once_with_its_replica():
    """Though the replica is where it was, the way there is another one."""
    async with fake_replica() as replica:

        def table(client_key):
            return [{"name": "r1", "url": replica.url, "client_key": client_key}]

        async with router_over(replicas=table("forward")) as up:
            key = b"Authorization: Bearer client"
            assert (await posted(up.url, BODY, key)).status == 200
            assert await up.reload.reloaded(lambda: config(replicas=table("drop")))
            await until(lambda: up.fleet.is_open("r1"))
            assert (await posted(up.url, BODY, key)).status == 200
        assert [seen.values(b"authorization") for seen in replica.seen] == [[b"Bearer client"], []]


async def test_limits_and_the_policy_change_at_once():
    async def silent(exchange):
        await exchange.left()

    async with fake_replica(silent) as replica, router_over(replica, timeouts__hung_s=None) as up:
        assert await up.reload.reloaded(
            lambda: config(replica, timeouts__first_byte_s=0.05, timeouts__hung_s=None, policy__name="random")
        )
        assert (await posted(up.url)).status == 504


async def test_a_setting_that_is_gone_is_its_default_again(tmp_path):
    file = tmp_path / "router.toml"
    async with fake_replica() as replica, router_over(replica) as up:
        rest = f'replicas = ["{replica.url}"]\npolicy.name = "round-robin"\n'
        for line, drain_s in (("drain_s = 7\n", 7.0), ("", 30.0), ("drain_s = 8\n", 8.0), ("drian_s = 9\n", 8.0)):
            file.write_text(line + rest)
            assert await up.reload.reloaded(lambda: load(file)[0]) is ("drian" not in line)
            assert up.reload.membership.drain_s == up.reload.config.drain_s == drain_s
            assert (await posted(up.url)).status == 200


async def test_what_can_not_change_is_named(caplog):
    caplog.set_level("INFO")
    async with fake_replica() as replica, router_over(replica) as up:
        assert await up.reload.reloaded(lambda: config(replica, block_tokens=32, drain_s=7, limits__body_bytes=10))
        assert up.reload.membership.drain_s == 7
        assert (await posted(up.url)).status == 200
    assert "restart the router to change block_tokens, limits.body_bytes; until then the old values stay" in caplog.text


def bad():
    raise ConfigError("unknown setting 'replcas' (file x); did you mean replicas?")


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (bad, "unknown setting 'replcas'"),
        (lambda: config(policy__name="least-lodaed"), "least-lodaed"),
        (lambda: config(policy__settings={"nothing": 1}), "nothing"),
        (lambda: config(policy__name="prefix-aware"), "reads prompts where round-robin does not"),
        (lambda: config(listen__cert_file="/none.pem"), "listen.cert_file '/none.pem' can't be used"),
    ],
)
async def test_a_mistake_changes_nothing(caplog, read, said):
    async with fake_replica() as replica, router_over(replica, tokenizer__where="none") as up:
        before = up.reload.config
        assert not await up.reload.reloaded(read)
        assert (up.reload.config, up.fleet.replicas()) == (before, ("r1",))
        assert (await posted(up.url)).status == 200
    assert said in caplog.text
    assert "the one before stays in force" in caplog.text


async def test_a_request_that_is_placed_during_a_reload_is_placed_by_one_policy():
    class Says:
        uses_prefixes = False

        def __init__(self, word):
            self.word = word

        def choose(self, request, replicas):
            return Choice(replicas[0].name, self.word)

    policy = InForce(Says("one"))
    assert policy.choose(None, [type("R", (), {"name": "r1"})]).reason == "one"
    policy.take(Says("two"))
    assert policy.choose(None, [type("R", (), {"name": "r1"})]).reason == "two"
    assert policy.uses_prefixes is False
