"""How often the log says the same of a replica's KV events: once, and again only after a while.

The one rule: it outlives the connections it is about, so that a publisher that is tried again and again is not
complained of as often. What is not said is counted all the same. Not here: the words (`kv_feed`, `kv_events`).
"""

from typing import Final

QUIET_S: Final = 300.0


class Complaints:
    """When what kind of thing was said of one replica last."""

    __slots__ = ("_said_s",)

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Complaints {', '.join(self._said_s) or 'none'}>"

    def due(self, kind: str, now_s: float) -> bool:
        """Whether to say something of this kind now; `kind` is of a small set. If so, it counts as said."""
        if now_s - self._said_s.get(kind, -QUIET_S) < QUIET_S:
            return False
        self._said_s[kind] = now_s
        return True
