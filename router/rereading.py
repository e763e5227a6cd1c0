"""A file's value, read again when the file changes, while requests go on.

The one rule: what could be read stays in force until something better can be; a file that is half written, gone or
wrong is told of, loudly, once for each state it is seen in. A change is taken once the file has rested for one look,
so that a writer in the middle of it is let finish. Not here: what the file means.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from router.errors import ConfigError

_log = logging.getLogger("router.rereading")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Mark = tuple[int, ...] | None
"""Tells one state of a file from another; None when there is no file."""


class Current(Protocol[T_co]):
    """Something that has a value now; `fault` says why a newer one is not in force."""

    @property
    def value(self) -> T_co: ...

    @property
    def fault(self) -> str: ...


class Fixed(Generic[T]):
    """A value that never changes."""

    fault = ""

    def __init__(self, value: T) -> None:
        self.value = value


class Reread(Generic[T]):
    """The value of a file."""

    def __init__(self, path: Path, read: Callable[[Path], T], *, interval_s: float = 1.0) -> None:
        """Reads at once, and raises what `read` raises: a start with a bad file is no start."""
        self._path = path
        self._read = read
        self._interval_s = interval_s
        self._mark = self._seen = _mark(path)
        self.value = read(path)
        self.fault = ""
        """Why the file as it is now is not in force; empty when it is."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Reread {self._path} {self.value!r}{': ' + self.fault if self.fault else ''}>"

    async def __aenter__(self) -> "Reread[T]":
        self._task = asyncio.create_task(self._watch(), name=f"rereads {self._path.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def looked(self) -> bool:
        """One look at the file; True when it was read again."""
        mark = await asyncio.to_thread(_mark, self._path)
        if mark == self._mark:
            self._seen = mark
            return False
        if mark != self._seen:  # it has just changed: perhaps it is still being written
            self._seen = mark
            return False
        self._mark = mark
        try:
            self.value = await asyncio.to_thread(self._read, self._path)
        except ConfigError as error:
            self.fault = str(error)
            _log.error("%s; what it said before stays in force", error)
            return False
        self.fault = ""
        _log.info("read again: %s", self._path)
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.looked()
            except Exception:  # whatever it is, the next look must come
                _log.exception("looking at %s failed; what it said before stays in force", self._path)


def _mark(path: Path) -> Mark:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino
