"""Every shape a batch of events has had on the wire, and everything else that may arrive instead."""

import base64
import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv_wire import MOST_PAYLOAD_BYTES, Cleared, Removed, Stored, Unusable, WireError, batch

RECORDINGS = Path(__file__).parents[1] / "recordings"


def recorded(name):
    return json.loads(gzip.decompress((RECORDINGS / name).read_bytes()))


CASES = recorded("kv_event_cases.json.gz")
pack = msgspec.msgpack.encode


def events(payload):
    return list(batch(payload).events())


@pytest.mark.parametrize("case", CASES["wire_shapes"]["payloads"], ids=lambda case: case["name"])
def test_shapes_by_version(case):
    payload, expect = bytes.fromhex(case["hex"]), case["expect"]
    if expect.get("decode_errors"):
        with pytest.raises(WireError):
            batch(payload)
        return
    found = events(payload)
    stored = [event for event in found if isinstance(event, Stored)]
    assert sum(len(event.hashes) for event in stored) == expect["stored"]
    assert sum(len(event.hashes) for event in found if isinstance(event, Removed)) == expect.get("removed", 0)
    assert found.count(Unusable("unknown")) == expect.get("unknown_events", 0)
    assert (Cleared() in found) == expect.get("cleared", False)
    assert batch(payload).rank == expect.get("dp_rank", batch(payload).rank)
    assert stored[0].adapter == expect.get("lora", "")
    assert stored[0].medium == "GPU"
    assert all(0 <= value < 1 << 64 for event in stored for value in event.hashes)


def test_signed_unsigned_and_bytes_hashes_are_one_kind():
    full = bytes(24) + (1 << 63 | 5).to_bytes(8, "big")
    values = [1 << 63 | 5, (1 << 63 | 5) - (1 << 64), full]
    found = events(pack([1.0, [["BlockRemoved", values]]]))
    assert found == [Removed([1 << 63 | 5] * 3, "GPU", None)]


def test_what_a_running_engine_sent():
    kinds = [
        type(event).__name__
        for step in recorded("kv_events_int64.json.gz")
        for sent in step["batches"]
        for event in batch(base64.b64decode(sent["payload_b64"])).events()
    ]
    assert kinds.count("Cleared") == 2
    assert kinds.count("Stored") == len(kinds) - 2
    frames = [base64.b64decode(frame) for frame in CASES["bytes"]["frames_b64"]]
    *removed, stored = events(frames[2])
    assert [len(event.hashes) for event in removed] == [1, 1, 1]
    assert stored.tokens == CASES["bytes"]["prompt_token_ids"][: 3 * stored.block_tokens]


def test_an_adapter_without_a_name_is_unknown_not_absent():
    legacy = ["BlockStored", [1], None, [1, 2], 2, 7]
    assert [event.adapter for event in events(pack([1.0, [legacy, legacy[:5]]]))] == [None, ""]


@pytest.mark.parametrize("number", [[7], {}, "7", 7.0, True, None], ids=str)
def test_an_adapters_number_is_a_number_or_unknown(number):
    named = ["BlockStored", [1], None, [1, 2], 2, number, "GPU", "sql"]
    (found,) = events(pack([1.0, [named]]))
    assert (found.adapter, found.adapter_number) == ("sql", None)


@pytest.mark.parametrize(
    "broken",
    [
        {"block_hashes": None},
        {"block_hashes": ["text"]},
        {"block_hashes": [b""]},
        {"block_size": 0},
        {"block_size": 3},
        {"block_size": "2"},
        {"token_ids": [1, 2, 3]},
        {"token_ids": "abcd"},
        {"extra_keys": [None]},
        {"extra_keys": 3},
        {"lora_name": 3},
    ],
    ids=str,
)
def test_an_event_that_contradicts_its_form_costs_only_itself(broken):
    good = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [1, 2, 3, 4]}
    good |= {"block_size": 2}
    found = events(pack([1.0, [good | broken, good]]))
    assert found[0] == Unusable("malformed")
    assert isinstance(found[1], Stored)


@pytest.mark.parametrize(
    "event", [None, 3, "text", [], {}, [[]], {"type": []}, {"type": None}, {"kind": "BlockStored"}]
)
def test_things_that_are_no_event(event):
    assert all(isinstance(found, Unusable) for found in events(pack([1.0, [event]])))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xc1",
        pack(None),
        pack([1.0]),
        pack({"ts": 1.0}),
        pack([1.0, None]),
        pack([1.0, {}]),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\x81" * 5000,
        pack([1.0, []]) + b"more",
        bytes(MOST_PAYLOAD_BYTES + 1),
    ],
    ids=range(14),
)
def test_things_that_are_no_batch(payload):
    with pytest.raises(WireError):
        batch(payload)


def test_a_long_batch_is_read_in_parts_and_means_the_same():
    def made(blocks):
        stored = {"type": "BlockStored", "block_hashes": list(range(blocks)), "parent_block_hash": None}
        return stored | {"token_ids": [70_000] * blocks * 4, "block_size": 4}

    for shape in (lambda told: [1.0, told, 3], lambda told: {"ts": 1.0, "events": told, "data_parallel_rank": 3}):
        payload = pack(shape([made(2000), made(3000), {"type": "AllBlocksCleared"}]))
        assert len(payload) > 64 * 1024
        assert batch(payload).rank == 3
        assert [len(event.hashes) for event in batch(payload).events() if isinstance(event, Stored)] == [2000, 3000]
        for cut in (1, 10, 9000, len(payload) - 1):
            with pytest.raises(WireError):
                batch(payload[:cut])


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text() | st.integers(), inner, max_size=6),
    max_leaves=20,
)
fields = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "New"])},
    optional={
        "block_hashes": st.lists(st.integers(-(2**63), 2**64 - 1), max_size=3) | anything,
        "parent_block_hash": anything,
        "token_ids": st.lists(st.integers(), max_size=6) | anything,
        "block_size": st.integers(-1, 3) | anything,
        "extra_keys": anything,
        "medium": anything,
        "lora_name": anything,
        "group_idx": anything,
    },
)


@given(st.lists(fields | anything, max_size=4) | anything, st.integers(0, 3))
def test_nothing_raises_but_a_wire_error(told, shape):
    try:
        payload = pack({"events": told, "ts": 1.0} if shape == 0 else [1.0, told, None][:shape])
    except OverflowError:
        return
    try:
        found = events(payload)
    except WireError:
        return
    for event in found:
        assert isinstance(event, Stored | Removed | Cleared | Unusable)


@given(st.binary(max_size=200))
def test_garbage(payload):
    try:
        found = events(payload)
    except WireError:
        return
    assert all(isinstance(event, Stored | Removed | Cleared | Unusable) for event in found)
