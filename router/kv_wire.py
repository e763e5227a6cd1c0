"""KV events as vLLM sends them: a payload in, plain facts out.

Three shapes are on the wire: everything an array with the kind first (to 0.23), arrays holding maps (from 0.24), and
maps throughout. Trailing fields may be missing, fields and kinds may be new. The one rule: nothing raises but
`WireError`, and that only for a payload of which nothing can be used; one bad event costs that event. Hashes are
integers or bytes on the wire; here they are the low 64 bits, unsigned. Not here: what the facts mean (`kv_blocks`).
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from router.kv_shapes import WireCleared, WireRemoved, WireStored

MOST_PAYLOAD_BYTES: Final = 640 * 1024
"""A larger payload is not read: decoding it would hold up the event loop for over 10 ms. A step of an engine computes
8,192 to 65,536 tokens, an id takes 5 bytes at most."""

_WHOLE_BYTES: Final = 64 * 1024  # a longer batch is decoded event by event
_SLICE_ITEMS: Final = 64
_SLICE_BYTES: Final = 32 * 1024  # what is done at once takes well under a millisecond
_LOW_64: Final = (1 << 64) - 1
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError)


class WireError(Exception):
    """A payload that is no batch of events; the text is a constant that holds nothing of the payload."""


class Stored(NamedTuple):
    """Blocks that were stored, in the order of one prompt."""

    hashes: list[int]
    parent: int | None
    tokens: list[int]
    block_tokens: int
    extra_keys: list[Any] | None
    """What else went into each block's hash; None where the engine does not tell."""
    adapter: str | None
    """Name of the LoRA adapter; empty without one, None where there is one and its name was not told."""
    medium: str
    group: int | None
    kind: str | None
    """Kind of attention of the group (`full_attention`, `sliding_window`, …); None where the engine does not tell."""
    adapter_number: int | None = None
    """The engine's own number of the adapter: another one each time it is loaded after having been unloaded."""


class Removed(NamedTuple):
    """One copy less of each block."""

    hashes: list[int]
    medium: str
    group: int | None


class Cleared(NamedTuple):
    """Nothing is cached any more."""


class Unusable(NamedTuple):
    """An event that says nothing to us."""

    reason: str
    """`unknown` for a kind that is new, `malformed` for one that contradicts its own form."""


Event = Stored | Removed | Cleared | Unusable


class Batch(NamedTuple):
    """The events of one step of one engine; those of a long batch are still packed."""

    rank: int | None
    at_s: float | None
    """When it was made, by the engine's clock."""
    items: list[Any]
    """What `event` makes an event of."""

    def slices(self) -> Iterator[list[Any]]:
        """The items in order, none packed any more, a few at a time."""
        part: list[Any] = []
        size = 0
        for item in self.items:
            if type(item) is msgspec.Raw:
                size += memoryview(item).nbytes
                part.append(_unpacked(item))
            else:
                part.append(item)
            if len(part) >= _SLICE_ITEMS or size > _SLICE_BYTES:
                yield part
                part, size = [], 0
        if part:
            yield part

    def events(self) -> Iterator[Event]:
        """All of them in order."""
        for part in self.slices():
            yield from map(event, part)


_WireEvent = WireStored | WireRemoved | WireCleared
_any = msgspec.msgpack.Decoder()
_usual = msgspec.msgpack.Decoder(tuple[Any, list[_WireEvent], Any])
_usual_event = msgspec.msgpack.Decoder(_WireEvent)
_packed = msgspec.msgpack.Decoder(list[msgspec.Raw])
_packed_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def batch(payload: bytes) -> Batch:
    """Raises `WireError`."""
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise WireError("too large")
    try:
        if len(payload) > _WHOLE_BYTES:
            found = _in_parts(payload)
        else:
            try:
                found = _usual.decode(payload)
            except msgspec.ValidationError:  # another version's shape, or an event that is not as it should be
                found = _any.decode(payload)
    except _UNREADABLE:
        raise WireError("not msgpack") from None
    if isinstance(found, dict):
        rank, at_s, items = found.get("data_parallel_rank"), found.get("ts"), found.get("events")
    elif isinstance(found, list | tuple) and len(found) >= 2:
        rank, at_s, items = found[2] if len(found) > 2 else None, found[0], found[1]
    else:
        raise WireError("no batch of events")
    if type(items) is not list:
        raise WireError("no batch of events")
    return Batch(
        rank if type(rank) is int and 0 <= rank < 1 << 16 else None, at_s if type(at_s) is float else None, items
    )


def _in_parts(payload: bytes) -> Any:
    """The batch with its events still packed, so that each is decoded in its turn."""
    if payload[0] & 0xF0 == 0x80 or payload[0] in (0xDE, 0xDF):
        fields = _packed_map.decode(payload)
        return {
            name: _packed.decode(value) if name == "events" else _any.decode(value) for name, value in fields.items()
        }
    return [
        _packed.decode(value) if at == 1 else _any.decode(value) for at, value in enumerate(_packed.decode(payload))
    ]


def _unpacked(item: msgspec.Raw) -> Any:
    try:
        return _usual_event.decode(item)
    except _UNREADABLE:
        pass
    try:
        return _any.decode(item)
    except _UNREADABLE:
        return None


def event(item: Any) -> Event:
    """One event, whichever shape its item has."""
    try:
        if isinstance(item, msgspec.Struct):
            kind, fields = item.__struct_config__.tag, msgspec.structs.asdict(item)
        elif type(item) is dict:
            kind, fields = item.get("type"), item
        else:
            kind = item[0]
            fields = dict(zip(_FIELDS.get(kind, ()), item[1:], strict=False))
        if kind == "BlockRemoved":
            return Removed(_hashes(fields["block_hashes"]), fields.get("medium") or "GPU", _group(fields))
        if kind == "BlockStored":
            return _stored(fields)
        return Cleared() if kind == "AllBlocksCleared" else Unusable("unknown")
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, *_UNREADABLE):
        return Unusable("malformed")


_FIELDS: Final[dict[Any, tuple[str, ...]]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
}
"""Order of the fields of events that are arrays (vLLM 0.10 to 0.23)."""


def _stored(fields: dict[str, Any]) -> Stored | Unusable:
    hashes = _hashes(fields["block_hashes"])
    parent = fields["parent_block_hash"]
    tokens, size = fields["token_ids"], fields["block_size"]
    extra = fields.get("extra_keys")
    if type(size) is not int or size < 1 or type(tokens) is not list or len(tokens) != size * len(hashes):
        return Unusable("malformed")
    if extra is not None and (type(extra) is not list or len(extra) != len(hashes)):
        return Unusable("malformed")
    adapter = fields.get("lora_name")
    if adapter is None:
        adapter = "" if fields.get("lora_id") is None else None
    elif type(adapter) is not str:
        return Unusable("malformed")
    kind, number = fields.get("kv_cache_spec_kind"), fields.get("lora_id")
    return Stored(
        hashes,
        None if parent is None else _hash(parent),
        tokens,
        size,
        extra,
        adapter,
        fields.get("medium") or "GPU",
        _group(fields),
        kind if type(kind) is str else None,
        number if type(number) is int else None,
    )


def _hashes(values: list[Any]) -> list[int]:
    if len(values) == 1 and type(values[0]) is int and values[0] >= 0:
        return values
    if set(map(type, values)) == {int} and min(values) >= 0:
        return values
    return [_hash(value) for value in values]


def _hash(value: Any) -> int:
    if type(value) is int:
        return value & _LOW_64
    if type(value) is bytes and value:
        return int.from_bytes(value[-8:], "big")
    raise TypeError("a block hash is neither a number nor bytes")


def _group(fields: dict[str, Any]) -> int | None:
    group = fields.get("group_idx")
    return group if type(group) is int else None
