"""What a server tells of itself: model, adapter, template, version, counters; and what follows when it does not."""

import pytest

from router.bench.about import Counted, about, counted
from router.bench.driver import connected
from router.errors import RouterError
from tests.emulated import emulated
from tests.fakes import fake_replica


@pytest.fixture
async def server():
    emulator = await emulated()
    yield emulator
    await emulator.close()


async def asked(url, model=""):
    async with connected({}, 5.0) as client:
        return await about(client, url, model)


async def test_a_server_tells_model_root_version_and_template(server):
    found = await asked(server.url)
    assert (found.model, found.root, found.adapter_of, found.version) == ("tiny", "/models/tiny", None, "0.32.0")
    assert len(found.template) == 16


async def test_an_adapter_is_named_beside_its_base(server):
    found = await asked(server.url, "sql")
    assert (found.model, found.adapter_of) == ("sql", "tiny")


async def test_another_template_has_another_fingerprint(server):
    def shouting(route, body):
        return list("".join(message["content"].upper() for message in body["messages"]).encode())

    other = await emulated(tokenize=shouting)
    try:
        assert (await asked(other.url)).template != (await asked(server.url)).template
    finally:
        await other.close()


async def test_a_model_that_is_not_served_is_told_with_those_that_are(server):
    with pytest.raises(RouterError, match="does not serve the model 'huge'; it serves tiny, sql"):
        await asked(server.url, "huge")


async def test_a_server_that_tells_nothing_but_models_is_measured_all_the_same():
    async with fake_replica() as replica:
        found = await asked(replica.url)
        assert (found.model, found.version, found.template) == ("m", None, None)
        async with connected({}, 5.0) as client:
            assert await counted(client, [replica.url]) is None


async def test_a_server_that_names_no_model_wants_one_named():
    async with fake_replica() as replica:
        replica.models = []
        with pytest.raises(RouterError, match="name one with --model"):
            await asked(replica.url)
        assert (await asked(replica.url, "mine")).model == "mine"


async def test_a_server_that_wants_a_key_or_is_not_there_is_told():
    emulator = await emulated(api_key="secret")
    try:
        with pytest.raises(RouterError, match="401 to /v1/models; name the variable with its key: --api-key-env"):
            await asked(emulator.url)
    finally:
        await emulator.close()
    with pytest.raises(RouterError, match=r"127\.0\.0\.1:\d+ refused the connection"):
        await asked(emulator.url)


async def test_counters_of_several_engines_are_added_and_all_must_tell(server):
    async with fake_replica() as silent, connected({}, 5.0) as client:
        assert await counted(client, [server.url, server.url]) == Counted(0, 0)
        assert await counted(client, [server.url, silent.url]) is None
        assert await counted(client, []) is None


def test_counters_that_went_back_tell_nothing():
    assert Counted(30, 20).since(Counted(10, 5)) == Counted(20, 15)
    assert Counted(3, 2).since(Counted(10, 5)) is None
