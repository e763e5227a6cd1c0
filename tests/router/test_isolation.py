"""Tenants apart, in pairs: against emulated replicas, behind a whole router, and where an engine passes over salts."""

import json

import pytest

from router.check import Checked
from router.isolation import MESSAGES, PATHS, RESPONSES, Pair, body_of, examined, paired
from router.openai import CHAT, COMPLETIONS
from router.probes import ProbeError, session
from tests.emulated import cached, emulated
from tests.fakes import fake_replica, ok, posted
from tests.tenanted import ALPHA, BETA, bearer, tenanted, tenants_text

TEXT = "a system prompt that every tenant would like to know the beginning of, " * 4


class At:
    """A replica as `tenanted` takes it."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture
async def replica():
    emulator = await emulated(speed=1000.0)
    yield emulator
    await emulator.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_replica_that_reads_salts_keeps_tenants_apart(replica, path):
    async with session(timeout_s=5.0, key=None) as client:
        pair = await paired(client, replica.url, path, "tiny", most_tokens=1000)
    assert pair.word == "apart"
    assert pair.own_tokens > 0.9 * pair.prompt_tokens - 32
    assert pair.others_tokens == 0


@pytest.mark.parametrize("path", PATHS)
async def found(up, key: str, body: bytes, path: str = COMPLETIONS) -> int:
    """Tokens a tenant finds cached."""
    reply = await posted(up.url, body, bearer(key), b"Content-Type: application/json", path=path.encode())
    assert reply.status == 200, reply.body
    return cached(reply.json)


def written(path: str = COMPLETIONS, text: str = TEXT, **more: object) -> bytes:
    return json.dumps(body_of(path, "tiny", text) | more).encode()


@pytest.mark.parametrize("path", PATHS)
async def test_behind_the_router_one_tenant_finds_its_own_and_another_nothing(replica, tmp_path, path):
    body = written(path)
    async with tenanted(tmp_path, At(replica.url)) as up:
        assert [await found(up, key, body, path) for key in (ALPHA, BETA)] == [0, 0]
        assert min([await found(up, key, body, path) for key in (ALPHA, BETA)]) > 200
        told = up.metrics.exposition().decode()
        assert 'router_tenant_tokens_total{kind="delivered",tenant="alpha"}' in told


async def test_a_group_shares_its_prompts(replica, tmp_path):
    text = tenants_text(alpha='salt_group = "g"', beta='salt_group = "g"')
    async with tenanted(tmp_path, At(replica.url), text=text) as up:
        assert await found(up, ALPHA, written()) == 0
        assert await found(up, BETA, written()) > 200


@pytest.mark.parametrize("spelt", ['"cache_salt"', '"cache\\u005fsalt"', '"cache_salt":"x","cache_salt"'])
async def test_a_tenant_can_not_join_another_by_its_salt(replica, tmp_path, spelt):
    async with tenanted(tmp_path, At(replica.url)) as up:
        salt = up.gateway.tenants.named("alpha").salt
        assert await found(up, ALPHA, written()) == 0
        assert await found(up, BETA, written()[:-1] + f',{spelt}:"{salt}"}}'.encode()) == 0
        assert await found(up, ALPHA, written()) > 200


def answering(*found: int):
    """A replica that says so many tokens were cached, one answer after the other."""
    left = list(found)

    async def answer(exchange):
        usage = {"prompt_tokens": 500, "prompt_tokens_details": {"cached_tokens": left.pop(0)}}
        await exchange.send(ok(json.dumps({"usage": usage}).encode()))

    return answer


@pytest.mark.parametrize(
    ("answers", "word"), [((0, 496, 0), "apart"), ((0, 496, 496), "shared"), ((0, 0, 0), "unknown")]
)
async def test_what_answers_mean(answers, word):
    async with fake_replica(answering(*answers)) as replica, session(timeout_s=5.0, key=None) as client:
        pair = await paired(client, replica.url, CHAT, "m")
        bodies = [json.loads(seen.body) for seen in replica.seen]
    assert pair.word == word
    assert len({body["messages"][0]["content"] for body in bodies}) == 1
    assert bodies[0]["cache_salt"] == bodies[1]["cache_salt"] != bodies[2]["cache_salt"]


async def test_a_path_that_is_not_served_is_passed_over():
    missing = ok(b"{}", b"Content-Type: application/json", status=b"404 Not Found")
    async with fake_replica(missing) as replica, session(timeout_s=5.0, key=None) as client:
        assert await paired(client, replica.url, RESPONSES, "m") is None
    broken = ok(b"{}", b"Content-Type: application/json", status=b"500 Internal Server Error")
    async with fake_replica(broken) as replica, session(timeout_s=5.0, key=None) as client:
        with pytest.raises(ProbeError, match="answered 500 to /v1/responses"):
            await paired(client, replica.url, RESPONSES, "m")
        with pytest.raises(ProbeError, match="gave no answer"):
            await paired(client, "http://127.0.0.1:9", RESPONSES, "m")


def test_what_an_engine_does_not_say_is_not_known():
    assert Pair(MESSAGES, None, None, None).word == "unknown"


def test_a_replica_that_is_not_there_has_a_problem():
    gone = Checked("r1", "http://127.0.0.1:9", models=["m"])
    silent = Checked("r2", "http://127.0.0.1:9")
    examined([gone, silent], None)
    assert len(gone.problems) == len(PATHS)
    assert "not known" in gone.problems[0]
    assert silent.problems == []
