"""`/admin/replicas`: who may change what, and what is refused."""

import json

import pytest

from router.errors import BadRequest, ConfigError, NotAllowed
from router.member_routes import address, admin_key, allowed, change, loopback
from tests.fakes import client_of, fake_replica, post, posted, router_over, until

JSON = b"Content-Type: application/json"


async def told(up, change: object, *fields: bytes):
    return await posted(up.admin_url, json.dumps(change).encode(), JSON, *fields, path=b"/admin/replicas")


async def listed(up):
    async with client_of(up.admin_url) as client:
        await client.send(b"GET /admin/replicas HTTP/1.1\r\nHost: a\r\n\r\n")
        return (await client.reply()).json["replicas"]


async def test_a_replica_comes_drains_and_goes():
    async with fake_replica() as first, fake_replica() as second, router_over(first) as up:
        answer = await told(up, {"add": {"url": second.url, "name": "new", "weight": 2.0}})
        assert (answer.status, [one["name"] for one in answer.json["replicas"]]) == (200, ["r1", "new"])
        await until(lambda: up.fleet.is_open("new"))
        assert (await told(up, {"drain": "r1"})).status == 200
        assert (await posted(up.url)).status == 200
        assert (len(first.seen), len(second.seen)) == (0, 1)
        await until(lambda: len(up.reload.membership.members()) == 1)
        [only] = await listed(up)
        assert only["weight"] < 2.0  # it starts slowly
        assert (only["name"], only["url"], only["state"], only["wanted_by"]) == (
            "new",
            second.url,
            "joined",
            ["operator"],
        )
        assert (await told(up, {"remove": "new"})).status == 200
        assert (await posted(up.url)).status == 503


async def test_it_is_on_the_admin_port_only():
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(up.url, b'{"remove":"r1"}', JSON, path=b"/admin/replicas")
        assert up.fleet.replicas() == ("r1",)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "send one of"),
        ([], "send one of"),
        ({"add": "a:1", "drain": "r1"}, "send one of"),
        ({"add": "a:1", "weight": 2}, "send one of"),
        ({"drain": 7}, "drain takes the name"),
        ({"add": 7}, "a replica is a text"),
        ({"add": "ftp://a"}, "the scheme is 'ftp'"),
        ({"add": {"url": "a:1", "wait": 1}}, "wait: Extra inputs"),
        ({"add": {"url": "a:1", "weight": 0}}, "weight: Input should be greater than 0"),
        ({"add": "http://169.254.169.254"}, "link-local"),
        ({"add": "http://[fe80::1]:80"}, "link-local"),
        ({"add": "http://[::ffff:169.254.169.254]:80"}, "link-local"),
        ({"add": "dns:vllm:8000"}, "belongs into the configuration"),
        ({"add": {"url": "https://a", "tls": {"ca_file": "/etc/passwd"}}}, "names files of this machine"),
        ({"add": "http://user:word@a:1"}, "has a user or password"),
    ],
)
def test_what_makes_no_sense_is_refused(asked, message):
    with pytest.raises(BadRequest) as raised:
        change(json.dumps(asked).encode())
    assert message in str(raised.value)
    assert "word" not in str(raised.value).replace("password", "")


@pytest.mark.parametrize(
    ("about", "name", "url"),
    [
        ("a:1", "a:1", "http://a:1"),
        ("https://a", "a:443", "https://a:443"),
        ("x=a:1", "x", "http://a:1"),
        ({"url": "[::1]:8000"}, "::1:8000", "http://[::1]:8000"),
        ({"url": "a:1", "name": "x"}, "x", "http://a:1"),
    ],
)
def test_a_replica_without_a_name_is_called_by_its_address(about, name, url):
    found = address(about)
    assert (found.name, found.url) == (name, url)


async def test_a_refusal_changes_nothing():
    async with fake_replica() as replica, router_over(replica) as up:
        assert (await told(up, {"drain": "nobody"})).status == 404
        assert (await told(up, {"add": {"url": "http://b:1", "name": "r1"}})).status == 400
        plain = await posted(up.admin_url, b'{"drain":"r1"}', b"Content-Type: text/plain", path=b"/admin/replicas")
        assert plain.status == 400  # what a page in a browser can send without being asked whether it may
        assert up.fleet.replicas() == ("r1",)


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic k3y", "k3y", "Bearer k3ý"])
def test_a_key_that_is_set_is_needed(given):
    allowed("Bearer k3y", "application/json", "k3y", local=False)
    with pytest.raises(NotAllowed):
        allowed(given, "application/json", "k3y", local=True)


def test_without_a_key_only_this_machine_may():
    allowed("", "application/json", None, local=True)
    with pytest.raises(NotAllowed, match=r"set admin\.key_file"):
        allowed("", "application/json", None, local=False)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gw", False)]
)
def test_which_ports_only_this_machine_reaches(host, local):
    assert loopback(host) is local


async def test_the_key_comes_from_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("k3y\n")
    async with fake_replica() as replica, router_over(replica, admin__key_file=str(file)) as up:
        assert (await told(up, {"drain": "r1"})).status == 403
        assert (await told(up, {"drain": "r1"}, b"Authorization: Bearer k3y")).status == 200
    file.write_text(" \n")
    for bad, said in ((file, "is empty"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=said):
            admin_key(str(bad))


async def test_a_body_that_is_no_json_is_400():
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.admin_url) as client:
        await client.send(post(b"{drain", JSON, path=b"/admin/replicas"))
        assert (await client.reply()).status == 400
