"""Whose request this is: a user for `user-hash`, a session for stickiness, from sources the operator lists.

A source is `header:NAME` or `body:MEMBER` (dots descend: `body:metadata.user_id`). The first that has a value wins.
Without any, a session is inferred: a prompt that continues one seen before belongs to the same conversation.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from router.errors import ConfigError
from router.http.messages import Call

_LONGEST_ID = 256
_LOOKED_BACK_BLOCKS = 512  # a turn longer than this many blocks starts a new session


class Identity:
    """Reads one kind of identity from a call, from the first source that has it."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources: list[bytes | list[str]] = []
        for source in sources:
            kind, _, name = source.partition(":")
            if kind == "header" and name:
                self._sources.append(name.lower().encode("latin-1", "replace"))
            elif kind == "body" and name:
                self._sources.append(name.split("."))
            else:
                raise ConfigError(f"identity source {source!r} is neither header:NAME nor body:MEMBER")

    def of(self, call: Call, body: Mapping[str, Any] | None) -> str | None:
        for source in self._sources:
            if isinstance(source, bytes):
                if raw := call.named.get(source):
                    return raw.decode("latin-1")[:_LONGEST_ID]
            elif body is not None and (value := _member(body, source)):
                return value[:_LONGEST_ID]
        return None


def _member(body: Mapping[str, Any], path: Sequence[str]) -> str | None:
    value: Any = body.get(path[0])
    for name in path[1:]:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) and value else None


class Sessions:
    """Infers sessions from growing prefixes; remembers the last block of the most recent `capacity` prompts."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._by_last_block: OrderedDict[bytes, bytes] = OrderedDict()
        self._capacity = capacity

    def __repr__(self) -> str:
        return f"<Sessions {len(self._by_last_block)} of {self._capacity}>"

    def of(self, blocks: Sequence[bytes]) -> str | None:
        """The session this prompt continues, or a new one named after its own last block; None for a tiny prompt."""
        if not blocks:
            return None
        found = self._continued(blocks)
        session = blocks[-1] if found is None else self._by_last_block.pop(found)
        self._by_last_block[blocks[-1]] = session
        if len(self._by_last_block) > self._capacity:
            self._by_last_block.popitem(last=False)
        return session.hex()

    def known(self, blocks: Sequence[bytes]) -> str | None:
        """The session `of` would tell, without remembering this prompt."""
        found = self._continued(blocks)
        session = blocks[-1:] if found is None else [self._by_last_block[found]]
        return session[0].hex() if session else None

    def _continued(self, blocks: Sequence[bytes]) -> bytes | None:
        recent = reversed(blocks[-_LOOKED_BACK_BLOCKS:])
        return next((block for block in recent if block in self._by_last_block), None)
