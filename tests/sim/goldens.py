"""What real vLLM engines and schedulers decided, as recorded: their jobs, their hashes, their events."""

import gzip
import hashlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.cache_events import Cleared, Event, Removed, Stored
from sim.cost import PROFILES
from sim.jobs import Job

RECORDINGS = Path(__file__).parent.parent / "recordings"
H100 = PROFILES["llama-3.1-8b-h100"]


def recording(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress((RECORDINGS / name).read_bytes()))
    return loaded


def engine_hash(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


NONE_HASH = engine_hash("vllm-none-hash")


def engine_keys(tokens: Sequence[int], block_tokens: int, salt: str | None) -> tuple[bytes, ...]:
    """The hashes vLLM itself gives to the full blocks (`sha256`, no PYTHONHASHSEED)."""
    keys: list[bytes] = []
    for start in range(0, len(tokens) // block_tokens * block_tokens, block_tokens):
        extra = (("cache_salt", salt),) if salt and not keys else None
        keys.append(engine_hash((keys[-1] if keys else NONE_HASH, tuple(tokens[start : start + block_tokens]), extra)))
    return tuple(keys)


def int64(key: bytes | None) -> int | None:
    return None if key is None else int.from_bytes(key[-8:], "big")


def plain(events: list[Event]) -> list[tuple[object, ...]]:
    out: list[tuple[object, ...]] = []
    for event in events:
        match event:
            case Stored(keys, parent):
                out.append(("S", [int64(key) for key in keys], int64(parent)))
            case Removed(key):
                out.append(("R", int64(key)))
            case Cleared():
                out.append(("C",))
    return out


def told_events(want: dict[str, Any]) -> list[tuple[object, ...]]:
    """The events of a scheduler's step, as `plain` gives ours."""
    flat: list[tuple[object, ...]] = []
    for event in want["events"]:
        flat += [("S", event[1], event[2])] if event[0] == "S" else [("R", key) for key in event[1]]
    return flat


def sized(golden: dict[str, Any]) -> dict[str, int]:
    """The settings of the scheduler that was recorded."""
    return {
        "blocks": golden["num_gpu_blocks"],
        "block_tokens": golden["block_size"],
        "max_num_seqs": golden["max_num_seqs"],
        "max_batched_tokens": golden["max_num_batched_tokens"],
    }


def requests_of(golden: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {request["id"]: request for request in golden["requests"]}


def hits(golden: dict[str, Any]) -> dict[str, int]:
    """Cached tokens of each request that was admitted."""
    return {name: one["cached_tokens"] for name, one in requests_of(golden).items() if "cached_tokens" in one}


def sync_job(request: dict[str, Any]) -> Job:
    answer = [(int(request["id"][1:]) * 7919 + n * 104729 + 13) % 130000 + 1000 for n in range(request["max_tokens"])]
    recorded = request["output_token_ids"]
    assert answer[: len(recorded)] == recorded
    length = min(request["max_tokens"], 1024 - len(request["prompt"]))
    keys = engine_keys(request["prompt"] + answer[:length], 16, request["salt"])
    return Job(request["id"], len(request["prompt"]), length, keys)


def async_job(request: dict[str, Any]) -> Job:
    """The answer as recorded; what an aborted request did not come to say is made up."""
    length = min(request["max_tokens"], 1024 - len(request["prompt"]))
    answer = (request["output_token_ids"] + list(range(length)))[:length]
    keys = engine_keys(request["prompt"] + answer, 16, request["salt"])
    return Job(request["id"], len(request["prompt"]), length, keys)
