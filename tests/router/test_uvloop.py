"""Clients that leave, on the loop a router really runs on: uvloop, towards replicas with and without TLS."""

import asyncio
import logging
import ssl

import pytest
import trustme
import uvloop

from tests.fakes import IDLE, STREAM, chunk, client_of, fake_replica, load_of, post, router_over, until


async def endless(exchange) -> None:
    await exchange.send(STREAM + chunk(b"data: 1\n\n"))
    await exchange.left()


async def two_hundred_leave() -> None:
    async with fake_replica(endless) as replica, router_over(replica) as up:

        async def one(number: int) -> None:
            async with client_of(up.url) as client:
                await client.send(post())
                await client.to(b"data: 1")
                if number % 2:
                    client.reset()

        for start in range(0, 200, 20):
            await asyncio.gather(*(one(start + number) for number in range(20)))
        await until(lambda: replica.left == 200)
        await until(lambda: load_of(up) == IDLE)


def test_two_hundred_streams_that_are_left_are_closed_without_a_word(caplog) -> None:
    with caplog.at_level(logging.ERROR):
        uvloop.run(two_hundred_leave())
    assert caplog.records == []


async def one_leaves_a_secured_replica(folder) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with fake_replica(endless) as replica:
        server = await asyncio.start_server(replica._connected, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with router_over(replicas=url, replica_tls__ca_file=str(folder / "ca.pem")) as up:
            async with client_of(up.url) as client:
                await client.send(post())
                await client.to(b"data: 1")
            await until(lambda: replica.left == 1, 1.0)
            await until(lambda: load_of(up) == IDLE)
        server.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # TLS transports of the fake replica, closed as the loop ends
def test_a_secured_replica_sees_within_a_second_that_a_client_left(tmp_path) -> None:
    uvloop.run(one_leaves_a_secured_replica(tmp_path))
