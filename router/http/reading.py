"""Reading a replica in small pieces once it sends faster than its client takes, and who keeps its connection.

A loop reads up to 256 KiB at once, and what was read stays in memory until a client has taken it. The one rule: small
events are read as if none of this were here. Not here: when that is done (`connection`).
"""

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.http.connection import ReplicaConnection

READ_BYTES = 16 * 1024
"""The most that is read at once of a reply that must be held back."""


class Pool(Protocol):
    """Who keeps a connection between two exchanges."""

    space: memoryview
    """What its connections are read into, one after the other."""

    def kept(self, connection: "ReplicaConnection") -> None: ...

    def gone(self, connection: "ReplicaConnection") -> None: ...


class SmallReads(asyncio.BufferedProtocol):
    """Stands before the Protocol of a connection and hands it what fits into `space`."""

    def __init__(self, behind: asyncio.Protocol, space: memoryview) -> None:
        self._behind = behind
        self._space = space

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 -- named by asyncio
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self._behind.data_received(bytes(self._space[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._behind.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._behind.connection_lost(exc)

    def pause_writing(self) -> None:
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        self._behind.resume_writing()


def read_by(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Let `protocol` have what comes from now on: how a transport reads is settled when it begins to."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
