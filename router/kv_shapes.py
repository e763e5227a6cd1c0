"""The form in which nearly all KV events come (vLLM from 0.24): maps, decoded straight into these.

The one rule: only types are checked here; what contradicts itself is found where events become facts (`kv_wire`). Not
compiled, for msgspec makes these classes from their keywords. Not here: the older shapes.
"""

from typing import Annotated, Any

import msgspec

_Hash = Annotated[int, msgspec.Meta(ge=0)]


class WireStored(msgspec.Struct, tag_field="type", tag="BlockStored", gc=False):
    """Stored blocks as they came, in the form that nearly all have; nothing but the types is checked yet."""

    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class WireRemoved(msgspec.Struct, tag_field="type", tag="BlockRemoved", gc=False):
    """Removed blocks as they came, in the form that nearly all have."""

    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


class WireCleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", gc=False):
    """Nothing is stored any more."""
