"""Where a replica's engines publish: what it tells itself, or what the configuration says.

vLLM answers `GET /kv_event_sources` with one entry per data-parallel rank (0.32; `{}` without events; older versions
404). The one rule: an address that means every interface means, from here, the replica's own host. Not here: sockets.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson

_ENDPOINT = re.compile(r"(tcp|ipc)://[^\s,;]+")
_EVERYWHERE = re.compile(r"^tcp://(\*|0\.0\.0\.0|\[?::\]?):")
_MOST_RANKS = 64

AUTO, OFF = "auto", "off"
"""Words instead of an endpoint."""

REMEDY = (
    'start vLLM with --kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}\''
)


@dataclass(frozen=True, slots=True)
class Source:
    """One engine's publisher."""

    rank: int
    endpoint: str
    replay: str | None
    topic: str = ""
    buffer_batches: int | None = None
    """Batches that can be replayed; None where it is not told."""


def told(body: bytes, url: str) -> tuple[Source, ...]:
    """The sources in an answer to `/kv_event_sources` of the replica at `url`, less entries that make no sense."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ()
    if not isinstance(document, dict):
        return ()
    found = []
    for rank, entry in list(document.items())[:_MOST_RANKS]:
        if not rank.isdecimal() or not isinstance(entry, dict) or entry.get("enable_kv_cache_events") is False:
            continue
        endpoint = _reachable(entry.get("endpoint"), url)
        if endpoint is None or entry.get("publisher", "zmq") != "zmq":
            continue
        topic, steps = entry.get("topic"), entry.get("buffer_steps")
        found.append(
            Source(
                int(rank),
                endpoint,
                _reachable(entry.get("replay_endpoint"), url),
                topic if isinstance(topic, str) else "",
                steps if isinstance(steps, int) else None,
            )
        )
    return tuple(sorted(found, key=lambda source: source.rank))


def configured(text: str, url: str, rank: int = 0) -> tuple[Source, ...]:
    """`ENDPOINT` or `ENDPOINT,REPLAY_ENDPOINT`, of rank 0; the ports of others are higher by their rank (vLLM 0.32).

    Raises `ValueError` with the remedy.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2 or not all(_ENDPOINT.fullmatch(part) for part in parts):
        raise ValueError(
            f"kv_events is {text[:100]!r}; write auto, off, or tcp://HOST:PORT with the replay endpoint after a comma"
            " (tcp://*:5557,tcp://*:5558 is every replica's own host)"
        )
    endpoint, *replay = (_of_rank(_reachable(part, url) or part, rank) for part in parts)
    return (Source(rank, endpoint, replay[0] if replay else None),)


def _of_rank(endpoint: str, rank: int) -> str:
    head, colon, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + rank}" if colon and port.isdecimal() else endpoint


def _reachable(endpoint: object, url: str) -> str | None:
    if not isinstance(endpoint, str) or not _ENDPOINT.fullmatch(endpoint):
        return None
    host = urlsplit(url).hostname or "127.0.0.1"
    return _EVERYWHERE.sub(f"tcp://[{host}]:" if ":" in host else f"tcp://{host}:", endpoint)
