"""Whether a replica reads the salt on `/v1/messages`: asked before it gets prompts, closed where it does not."""

import json
from dataclasses import dataclass

import pytest

from router.errors import NoReplicaAvailable, NotSalted
from router.health import ReplicaState
from router.openai import CHAT
from router.probes import session
from router.salt_proof import MESSAGES, SaltProof
from tests.emulated import emulated
from tests.fakes import BODY, fake_replica, ok, posted, until
from tests.tenanted import ALPHA, bearer, tenanted

READS = ok(b'{"error":{"message":"body.cache_salt: too short"}}', status=b"400 Bad Request")
PASSES_OVER = ok(b'{"type":"message"}')


@dataclass
class Replica:
    """A replica as the watcher tells of it."""

    url: str
    restarts: int = 0
    state: str = "open"

    def __call__(self) -> list[ReplicaState]:
        return [ReplicaState("r1", self.url, self.state, "", 0.0, ("m",), {}, self.restarts, None)]


def asking(answers: list[bytes]):
    """Answers what is asked directly; the fake's own 404 there is not wanted here."""

    async def answer(exchange):
        await exchange.send(answers.pop(0))

    return answer


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (READS, None),
        (ok(b"", status=b"404 Not Found"), None),
        (PASSES_OVER, NotSalted),
        (ok(b"", status=b"500 Internal Server Error"), NoReplicaAvailable),
        (ok(b'{"error":"no such model"}', status=b"400 Bad Request"), NoReplicaAvailable),
    ],
    ids=["reads", "absent", "passes over", "broken", "another error"],
)
async def test_what_an_answer_means(answer, raised):
    async with fake_replica(asking([answer])) as replica, session(timeout_s=5.0, key=None) as client:
        states = Replica(replica.url + "/direct")
        proof = SaltProof(client, states)
        with pytest.raises(NoReplicaAvailable, match="not known yet"):
            proof.check(MESSAGES)
        await proof.looked()
        assert json.loads(replica.seen[0].body)["cache_salt"] == ""
        if raised is None:
            proof.check(MESSAGES)
        else:
            with pytest.raises(raised):
                proof.check(MESSAGES)
        proof.check(CHAT)


async def test_a_replica_is_asked_once_and_again_after_a_restart():
    async with fake_replica(asking([READS, PASSES_OVER])) as replica, session(timeout_s=5.0, key=None) as client:
        states = Replica(replica.url + "/direct")
        proof = SaltProof(client, states)
        for _ in range(3):
            await proof.looked()
        assert len(replica.seen) == 1
        states.restarts += 1
        with pytest.raises(NoReplicaAvailable):
            proof.check(MESSAGES)
        await proof.looked()
        with pytest.raises(NotSalted):
            proof.check(MESSAGES)
        assert "0 replicas" in repr(proof)


async def test_a_replica_that_is_not_usable_is_neither_asked_nor_waited_for():
    async with session(timeout_s=5.0, key=None) as client:
        proof = SaltProof(client, Replica("http://127.0.0.1:9", state="closed"))
        await proof.looked()
        proof.check(MESSAGES)
        gone = SaltProof(client, Replica("http://127.0.0.1:9"))
        await gone.looked()
        with pytest.raises(NoReplicaAvailable):
            gone.check(MESSAGES)


async def test_an_emulated_replica_reads_it():
    emulator = await emulated(speed=1000.0)
    try:
        async with session(timeout_s=5.0, key=None) as client:
            proof = SaltProof(client, Replica(emulator.url))
            await proof.looked()
            proof.check(MESSAGES)
    finally:
        await emulator.close()


async def test_a_router_closes_the_path_where_salts_are_passed_over(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("router.tenant_wiring.LOOK_S", 0.01)
    monkeypatch.setattr("router.salt_proof.MESSAGES", "/direct/v1/messages")
    monkeypatch.setattr("router.salted_paths.SALTED", frozenset({"/direct/v1/messages", "/v1/completions"}))
    async with fake_replica(PASSES_OVER) as replica, tenanted(tmp_path, replica) as up:
        await until(lambda: "passes over cache_salt" in caplog.text)
        reply = await posted(up.url, BODY, bearer(ALPHA), path=b"/direct/v1/messages")
        assert (reply.status, reply.error["code"]) == (403, "path_not_salted")
        assert (await posted(up.url, BODY, bearer(ALPHA))).status == 200
