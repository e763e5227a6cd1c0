import pytest

from router.doctor.asking import fetched
from router.errors import UsageError
from tests.fakes import fake_replica, ok


async def test_what_a_router_tells():
    async with fake_replica(ok(b'{"findings": [], "routes": []}')) as admin:
        assert await fetched(admin.url) == {"findings": [], "routes": []}


@pytest.mark.parametrize("answer", [ok(b"[]"), ok(b"no json"), ok(b'{"findings": []}', status=b"404 Not Found")])
async def test_another_server_is_told(answer):
    async with fake_replica(answer) as admin:
        with pytest.raises(UsageError, match=r"admin address|no router answers"):
            await fetched(admin.url)


async def test_nobody_there_and_no_address():
    with pytest.raises(UsageError, match="no router answers"):
        await fetched("http://127.0.0.1:9")
    with pytest.raises(UsageError, match="is no http:// address"):
        await fetched("nonsense")


async def test_a_name_the_admin_port_does_not_go_by_is_told():
    async with fake_replica(ok(b'{"error":{"message":"see admin.allowed_hosts"}}', status=b"403 Forbidden")) as admin:
        with pytest.raises(UsageError, match=r"answered 403; see admin\.allowed_hosts"):
            await fetched(admin.url)
