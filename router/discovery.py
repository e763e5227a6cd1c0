"""Finds replicas that come and go: names that are looked up again and again, and a file that is watched.

The one rule: no answer is no news. What was known stays when a name can't be resolved or a file can't be read, since
replicas that are really gone fail their probes anyway. Not here: what joining and leaving mean (`membership`).
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import orjson
from pydantic import TypeAdapter, ValidationError

from router.addresses import DNS, parsed
from router.errors import ConfigError
from router.rereading import Reread
from router.sections import ReplicaAddress, ReplicaTls

_log = logging.getLogger("router.discovery")

CONFIGURATION, FILE = "configuration", "file"
"""Who wants a replica: the settings, or the watched file. Either may hold names to look up."""

_ADDRESSES = TypeAdapter(tuple[ReplicaAddress, ...])
_LOOK_S = 1.0

Split = Callable[[ReplicaAddress], Awaitable[tuple[ReplicaAddress, ...]]]
"""The replicas behind one address: one for each of its engines."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name. Raises `OSError` when there is no answer."""


class Wanting(Protocol):
    """Who is told which replicas there are."""

    async def wanted(self, source: str, replicas: Iterable[ReplicaAddress]) -> None: ...


class Discovery:
    """Knows the replicas of the configuration and of a file; `kept` keeps a membership up to date."""

    def __init__(
        self,
        written: Sequence[ReplicaAddress],
        file: Path | None = None,
        *,
        resolve: Resolve | None = None,
        dns_s: float = 5.0,
        split: Split | None = None,
    ) -> None:
        """Raises `ConfigError` for a file that can't be read at the start."""
        self._written = {CONFIGURATION: tuple(written)}
        self._file = None if file is None else Reread(file, replicas_in)
        if self._file is not None:
            self._written[FILE] = self._file.value
        self._resolve = resolve or looked_up
        self.dns_s = dns_s
        self._split = split
        self._answers: dict[str, tuple[str, ...]] = {}
        self._failing: set[str] = set()
        self._told: dict[str, tuple[ReplicaAddress, ...]] = {}

    def __repr__(self) -> str:
        return f"<Discovery {len(self._written)} sources, {len(self._answers)} names>"

    async def found(self) -> dict[str, tuple[ReplicaAddress, ...]]:
        """All replicas by source, names looked up now."""
        self._told = {source: await self._expanded(written) for source, written in self._written.items()}
        return self._told

    async def rewritten(self, written: Sequence[ReplicaAddress], membership: Wanting) -> None:
        """The configuration lists other replicas now."""
        self._written[CONFIGURATION] = tuple(written)
        await self._tell(CONFIGURATION, membership)

    async def kept(self, membership: Wanting) -> None:
        """Look again and again, until cancelled."""
        since_s = 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            since_s += _LOOK_S
            try:
                await self.looked(membership, names=since_s >= self.dns_s)
            except Exception:  # whatever it is, the next look must come
                _log.exception("looking for replicas failed; those that are known stay")
            if since_s >= self.dns_s:
                since_s = 0.0

    async def looked(self, membership: Wanting, *, names: bool) -> None:
        """One look at the file, and at the names when they are due."""
        if self._file is not None and await self._file.looked():
            self._written[FILE] = self._file.value
            await self._tell(FILE, membership)
        if names:
            for source, written in self._written.items():
                if any(address.url.startswith(DNS) for address in written):
                    await self._tell(source, membership)

    async def _tell(self, source: str, membership: Wanting) -> None:
        found = await self._expanded(self._written[source])
        if found != self._told.get(source):
            self._told[source] = found
            await membership.wanted(source, found)

    async def _expanded(self, written: Sequence[ReplicaAddress]) -> tuple[ReplicaAddress, ...]:
        found: list[ReplicaAddress] = []
        for address in written:
            found += await self._behind(address) if address.url.startswith(DNS) else (address,)
        if self._split is not None:
            found = [engine for address in found for engine in await self._split(address)]
        return tuple(found)

    async def _behind(self, entry: ReplicaAddress) -> list[ReplicaAddress]:
        """The replicas that answer to one name, each called by its address."""
        url = entry.url.removeprefix(DNS)
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
        try:
            self._answers[entry.url] = tuple(sorted(set(await self._resolve(host, port))))
            self._failing.discard(entry.url)
        except OSError as error:
            if entry.url not in self._failing:
                self._failing.add(entry.url)
                known = len(self._answers.get(entry.url, ()))
                said = error.strerror or type(error).__name__
                _log.warning("%s can't be resolved (%s); %d replicas known from before stay", host, said, known)
        replicas = []
        for ip in self._answers.get(entry.url, ()):
            shown = f"[{ip}]" if ":" in ip else ip
            told: dict[str, object] = {"name": f"{ip}:{port}", "url": f"{parts.scheme}://{shown}:{port}"}
            if parts.scheme == "https" and (entry.tls is None or entry.tls.name is None):
                told["tls"] = (entry.tls or ReplicaTls()).model_copy(update={"name": host})  # not the address
            replicas.append(entry.model_copy(update=told))
        return replicas


async def looked_up(host: str, port: int) -> list[str]:
    """The system's resolver."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(answer[4][0]) for answer in answers]


def replicas_in(file: Path) -> tuple[ReplicaAddress, ...]:
    """The replicas of a file: one a line as `--replicas` takes them, `#` for remarks; or a JSON list of texts or
    tables. Raises `ConfigError` that names the file.
    """
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"replicas_file {str(file)!r} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"replicas_file {str(file)!r} is not UTF-8 text") from None
    try:
        if text.lstrip().startswith("["):
            told = orjson.loads(text)
        else:
            told = [line for line in (line.partition("#")[0].strip() for line in text.splitlines()) if line]
        return _ADDRESSES.validate_python(parsed(told))
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"replicas_file {str(file)!r} is not JSON: {error}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"replicas_file {str(file)!r}: {where}: {problem['msg']}") from None
    except ValueError as error:
        raise ConfigError(f"replicas_file {str(file)!r}: {error}") from None
