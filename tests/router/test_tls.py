"""TLS to clients and to replicas, with authorities made on the spot."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import trustme

from router.errors import ConfigError
from router.sections import Listen, ReplicaAddress, ReplicaTls
from router.tls import checked, facing_clients, towards
from tests.fakes import STREAM, Answered, Client, chunk, client_of, fake_replica, post, posted, router_over, until


class Papers:
    """An authority, and files with what it has issued."""

    def __init__(self, folder: Path, name: str) -> None:
        self.authority = trustme.CA()
        self.folder, self.name = folder, name
        self.ca = self.written("ca", self.authority.cert_pem.bytes())

    def written(self, word: str, pem: bytes) -> str:
        file = self.folder / f"{self.name}-{word}.pem"
        file.write_bytes(pem)
        return str(file)

    def cert(self, *names: str) -> str:
        issued = self.authority.issue_cert(*names)
        return self.written(names[0], issued.private_key_and_cert_chain_pem.bytes())

    def server(self, *names: str, clients: "Papers | None" = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert(*names))
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients.ca)
        return context

    def client(self, cert: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if cert is not None:
            context.load_cert_chain(cert)
        return context


@pytest.fixture
def ours(tmp_path):
    return Papers(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path):
    return Papers(tmp_path, "theirs")


async def answered(url: str, context: ssl.SSLContext, data: bytes) -> Answered:
    """The reply to some bytes over TLS."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(data)
        return await Client(reader, writer).reply()
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError, TimeoutError):
            await writer.wait_closed()


async def test_clients_speak_tls_on_both_paths_of_the_port(ours):
    async with fake_replica() as replica, router_over(replica, listen__cert_file=ours.cert("127.0.0.1")) as up:
        assert up.url.startswith("https://")
        for data in (post(), b"GET /v1/other HTTP/1.1\r\nHost: a\r\n\r\n"):
            reply = await answered(up.url, ours.client(), data)
            assert (reply.status, reply.body) == (200, b'{"ok":true}')
        assert len(replica.seen) == 2


async def test_a_client_that_speaks_plain_http_to_it_gets_nothing(ours):
    async with fake_replica() as replica, router_over(replica, listen__cert_file=ours.cert("127.0.0.1")) as up:
        async with client_of(up.url.replace("https", "http")) as client:
            await client.send(post())
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.head()
        assert replica.seen == []


async def test_only_clients_of_the_named_authority_are_let_in(ours, theirs):
    settings = {"listen__cert_file": ours.cert("127.0.0.1"), "listen__client_ca_file": theirs.ca}
    async with fake_replica() as replica, router_over(replica, **settings) as up:
        assert (await answered(up.url, ours.client(theirs.cert("alice")), post())).status == 200
        for context in (ours.client(), ours.client(ours.cert("mallory"))):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await answered(up.url, context, post())
        assert len(replica.seen) == 1


async def secured(replica, context: ssl.SSLContext) -> str:
    """The same replica behind TLS; its URL."""
    replica.server.close()
    replica.server = await asyncio.start_server(replica._connected, "127.0.0.1", 0, ssl=context)
    return f"https://127.0.0.1:{replica.server.sockets[0].getsockname()[1]}"


async def test_replicas_show_a_certificate_of_the_named_authority(ours, theirs):
    async with fake_replica() as replica:
        url = await secured(replica, ours.server("127.0.0.1"))
        async with router_over(replicas=url, replica_tls__ca_file=ours.ca) as up:
            assert (await posted(up.url)).status == 200
        async with router_over(replicas=url, replica_tls__ca_file=theirs.ca) as up:
            assert (await posted(up.url)).status == 503
            [state] = up.watcher.states()
            assert "shows a TLS certificate that can't be verified" in state.reason


async def test_each_replica_has_papers_of_its_own(ours, theirs):
    async with fake_replica() as first, fake_replica() as second:
        urls = [
            await secured(first, ours.server("replica.internal", clients=theirs)),
            await secured(second, ours.server("127.0.0.1")),
        ]
        tls = {"ca_file": ours.ca, "cert_file": theirs.cert("router"), "name": "replica.internal"}
        tables = [{"name": "r1", "url": urls[0].replace("127.0.0.1", "localhost"), "tls": tls}, {"url": urls[1]}]
        async with router_over(replicas=tables, replica_tls__ca_file=ours.ca) as up:
            assert [(await posted(up.url)).status for _ in range(2)] == [200, 200]
            assert (len(first.seen), len(second.seen)) == (1, 1)


async def test_a_replica_that_wants_a_certificate_gets_none_by_default(ours, theirs):
    async with fake_replica() as replica:
        url = await secured(replica, ours.server("127.0.0.1", clients=theirs))
        async with router_over(replicas=url, replica_tls__ca_file=ours.ca) as up:
            assert (await posted(up.url)).status == 503
            assert replica.seen == []


async def test_a_client_that_leaves_closes_a_tls_stream_to_the_replica(ours):
    async def endless(exchange):
        await exchange.send(STREAM + chunk(b"data: 1\n\n"))
        await exchange.left()

    async with fake_replica(endless) as replica:
        url = await secured(replica, ours.server("127.0.0.1"))
        async with router_over(replicas=url, replica_tls__ca_file=ours.ca) as up:
            async with client_of(up.url) as client:
                await client.send(post())
                await client.to(b"data: 1")
            await until(lambda: replica.left == 1, 2.0)


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ({"cert_file": "/none.pem"}, "listen.cert_file '/none.pem' can't be used"),
        ({"cert_file": "{cert}", "client_ca_file": "/none.pem"}, "listen.client_ca_file '/none.pem' can't be used"),
        ({"cert_file": "{cert}", "client_ca_file": "{junk}"}, "listen.client_ca_file '{junk}' can't be used"),
        ({"cert_file": "{ca}"}, "listen.cert_file '{ca}' can't be used"),
        ({"cert_file": "{locked}"}, "unencrypted key"),
    ],
)
def test_a_file_that_can_not_be_used_is_named(ours, tmp_path, listen, said):
    from cryptography.hazmat.primitives import serialization as pem

    issued = ours.authority.issue_cert("a")
    key = pem.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"s3cret"))
    files = {
        "cert": ours.cert("127.0.0.1"),
        "ca": ours.ca,
        "junk": ours.written("junk", b"s3cret"),
        "locked": ours.written("locked", locked + issued.cert_chain_pems[0].bytes()),
    }
    wanted = {name: value.format(**files) for name, value in listen.items()}
    with pytest.raises(ConfigError) as raised:
        facing_clients(Listen(**wanted))
    assert said.format(**files) in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_every_replicas_files_are_looked_at(ours):
    good = ReplicaTls(ca_file=ours.ca)
    bad = ReplicaAddress(name="r2", url="https://b:1", tls=ReplicaTls(ca_file="/none.pem"))
    checked(Listen(), good, [ReplicaAddress(name="r1", url="https://a:1")])
    with pytest.raises(ConfigError, match=r"replica r2: tls\.ca_file '/none\.pem' can't be used"):
        checked(Listen(), good, [bad])
    assert towards(ReplicaAddress(name="r1", url="http://a:1"), good) is None
