"""The proof against an emulated replica that caches, and against replicas that do not answer as they should."""

import pytest

from router.cache_proof import proved, tells_cached
from router.probes import ProbeError, session
from tests.emulated import emulated
from tests.fakes import fake_replica, ok


async def test_an_emulated_replica_proves_its_cache():
    replica = await emulated(vocabulary_tokens=1000, max_model_len=4096)
    async with session(timeout_s=5.0, key=None) as client:
        proof = await proved(client, replica.url, "tiny")
        assert (proof.prompt_tokens, proof.cached_tokens) == (2000, (0, 1984))
        assert await tells_cached(client, replica.url, "tiny")
        shorter = await proved(client, replica.url, "tiny", most_tokens=102)
        assert (shorter.prompt_tokens, shorter.cached_tokens) == (100, (0, 96))
    await replica.close()


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (ok(status=b"500 Internal Server Error"), "answered 500 to /v1/completions"),
        (ok(b""), "answered /v1/completions with nothing"),
        (b"nonsense\r\n\r\n", "gave no HTTP answer"),
    ],
)
async def test_a_replica_that_does_not_answer(raw, error):
    async with fake_replica(raw) as replica, session(timeout_s=5.0, key=None) as client:
        with pytest.raises(ProbeError, match=error):
            await proved(client, replica.url, "m")


async def test_a_replica_that_says_nothing_of_its_cache():
    async with (
        fake_replica(ok(b'{"usage":{"prompt_tokens":4}}')) as replica,
        session(timeout_s=5.0, key=None) as client,
    ):
        assert not await tells_cached(client, replica.url, "m")
        proof = await proved(client, replica.url + "#1", "m")
        assert "cached unknown and unknown" in proof.shown()
        assert [seen.values(b"X-data-parallel-rank") for seen in replica.seen] == [[], [b"1"], [b"1"]]
