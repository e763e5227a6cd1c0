"""A page that has its own name point at the admin port reads nothing there."""

import socket

import pytest

from router.hosts import allowed
from tests.fakes import client_of, fake_replica, router_over

EVIL = "rebound.attacker.example"


@pytest.mark.parametrize(
    ("host", "names", "may"),
    [
        ("127.0.0.1:9090", (), True),
        ("10.0.0.7", (), True),
        ("[::1]:9090", (), True),
        ("[fe80::1]", (), True),
        ("localhost:9090", (), True),
        ("LOCALHOST", (), True),
        ("a.localhost", (), True),
        ("prefix-router:9090", (), True),
        ("", (), True),
        (EVIL, (), False),
        (f"{EVIL}:9090", (), False),
        (f"{EVIL}.:9090", (), False),
        ("localhost.attacker.example", (), False),
        ("127.0.0.1.nip.io", (), False),
        ("127.0.0.1:9090@attacker.example", (), False),
        ("127.0.0.1 attacker.example", (), False),
        ("router.svc.cluster.local", ("router.svc.cluster.local",), True),
        ("Router.svc.cluster.local.:80", ("router.svc.cluster.local",), True),
        ("a.router.svc.cluster.local", ("router.svc.cluster.local",), False),
        ("a.corp.example", ("*.corp.example",), True),
        ("corp.example", ("*.corp.example",), False),
        ("evilcorp.example", ("*.corp.example",), False),
        (EVIL, ("*",), True),
    ],
)
def test_who_may_be_called_what(host, names, may):
    assert allowed(host, names) is may


async def asked(up, path: bytes, host: str, method: bytes = b"GET", more: bytes = b""):
    async with client_of(up.admin_url) as client:
        await client.send(b"%b %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (method, path, host.encode(), more))
        return await client.reply()


@pytest.mark.parametrize("path", [b"/", b"/metrics", b"/state", b"/hits", b"/doctor", b"/admin/replicas", b"/nothing"])
async def test_another_name_is_answered_403_on_every_path(path):
    async with fake_replica() as replica, router_over(replica) as up:
        answer = await asked(up, path, EVIL)
        assert (answer.status, answer.json["error"]["code"]) == (403, "not_allowed")
        assert "admin.allowed_hosts" in answer.json["error"]["message"]
        change = b"Content-Type: application/json\r\nContent-Length: 15\r\n"
        assert (await asked(up, b"/admin/replicas", EVIL, b"POST", change + b"\r\n" + b'{"remove":"r1"}')).status == 403
        assert up.fleet.replicas() == ("r1",)


async def test_its_own_names_and_those_it_was_given_are_served():
    names = [EVIL, "*.corp.example"]
    async with fake_replica() as replica, router_over(replica, admin__allowed_hosts=names) as up:
        for host in ("127.0.0.1", "localhost:1", socket.gethostname(), EVIL, EVIL.upper(), "a.corp.example:80"):
            assert (await asked(up, b"/state", host)).status == 200
        assert (await asked(up, b"/state", "corp.example")).status == 403
