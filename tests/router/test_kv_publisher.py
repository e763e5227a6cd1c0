"""Orders of batches that confused other routers, without sockets."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import Chain, block_keys, packed
from policies.fleet import Fleet
from policies.types import Request
from router.kv_publisher import Publisher
from router.kv_sequence import Turn
from router.kv_wire import batch

CASES = json.loads(gzip.decompress((Path(__file__).parents[1] / "recordings" / "kv_event_cases.json.gz").read_bytes()))
SEQUENCES = {case["name"]: case for case in CASES["restart_and_clear"]["sequences"]}
SIZE = CASES["restart_and_clear"]["block_size"]


def root(adapter, salt):
    return Chain.root("m", adapter, salt)


class Told:
    """Publishers of several replicas, fed as a subscription without a replay endpoint feeds them."""

    def __init__(self):
        self.fleet = Fleet(SIZE)
        self.publishers = {}
        self.asked_from = None
        for name in ("r1", "r2"):
            self.fleet.joined(name)
            self.publishers[name] = Publisher(self.fleet, name, root=root, alone=True)

    def play(self, case):
        for at, event in enumerate(case["events"]):
            publisher = self.publishers[event["replica"]]
            kind = {"type": "AllBlocksCleared"} if event.get("cleared") else self._stored(event["stored"])
            payload = msgspec.msgpack.encode([at if event["seq"] != 7 else 7.0, [kind], 0])
            turn = publisher.turn(event["seq"], payload)
            if turn is Turn.SEEN:
                publisher.faults["duplicate"] += 1
                continue
            if turn is Turn.RESTARTED:
                list(publisher.restarted())
            if turn is Turn.AHEAD:
                self.asked_from = publisher.sequence.next
            list(publisher.take(event["seq"], payload))

    @staticmethod
    def _stored(told):
        tokens = told["tokens"]
        first = tokens[0]
        hashes = [first + at for at in range(0, len(tokens), SIZE)]
        parent = 5 if told["parent"] else None  # the second block of the prompt 1, 2, 3, …
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": tokens,
            "block_size": SIZE,
        }

    def matched(self, tokens):
        keys = block_keys(root("", ""), packed(tokens), SIZE)
        request = Request("q", "/", "", "", None, None, len(tokens), None, keys, SIZE)
        return {replica.name: replica.matched_blocks for replica in self.fleet.view(request, 0.0)}


@pytest.mark.parametrize("name", ["in-place restart (sequence goes back to 0)", "AllBlocksCleared"])
def test_what_is_gone_is_forgotten(name):
    case, told = SEQUENCES[name], Told()
    told.play(case)
    found = told.matched(case["lookup"])
    assert {replica: found[replica] for replica in case["expect"]} == case["expect"]


def test_a_forward_gap():
    case, told = SEQUENCES["forward gap"], Told()
    told.play(case)
    publisher = told.publishers["r1"]
    assert told.asked_from == case["expect"]["replay_requested_from"]
    assert publisher.faults["missed"] == 4
    assert publisher.degraded
    assert told.matched([1, 2, 3, 4])["r1"] == told.matched([60, 61, 62, 63])["r1"] == 1


def test_a_duplicate():
    case, told = SEQUENCES["duplicate / late sequence"], Told()
    told.play(case)
    assert told.fleet.held_blocks("r1") == case["expect"]["r1_blocks"]
    assert told.publishers["r1"].faults["restart"] == 0


def test_a_late_start():
    case, told = SEQUENCES["first message ever has seq 812 (router started late)"], Told()
    told.play(case)
    assert told.asked_from == case["expect"]["replay_requested_from"]
    assert told.publishers["r1"].degraded == "812 batches before number 812 could not be had"


hashes = st.integers(0, 5) | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=32)
odd = st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.datetimes() | st.just([])
events = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "New"])},
    optional={
        "block_hashes": st.lists(hashes | odd, max_size=3) | odd,
        "parent_block_hash": hashes | odd,
        "token_ids": st.lists(st.integers(0, 9), min_size=4, max_size=12) | st.lists(odd, max_size=4),
        "block_size": st.sampled_from([1, 2, 3, 4, 8]) | odd,
        "extra_keys": st.lists(st.none() | st.lists(st.text(max_size=3) | odd, max_size=2) | odd, max_size=3) | odd,
        "medium": st.sampled_from(["GPU", "CPU"]) | odd,
        "lora_id": odd,
        "lora_name": st.text(max_size=3) | odd,
        "group_idx": st.integers(0, 2) | odd,
        "kv_cache_spec_kind": st.sampled_from(["full_attention", "mamba"]) | odd,
    },
)


@given(st.lists(st.tuples(st.integers(0, 8), st.lists(events | odd, max_size=4), st.binary(max_size=3)), max_size=12))
def test_whatever_is_published_nothing_raises_and_fleet_and_engine_agree(batches):
    told = Told()
    publisher = told.publishers["r1"]
    for number, happened, cut in batches:
        payload = msgspec.msgpack.encode([1.0, happened, 0]) + cut
        if publisher.turn(number, payload) in (Turn.NEXT, Turn.AHEAD):
            list(publisher.take(number, payload))
    list(publisher.blocks.forgotten())
    assert told.fleet.held_blocks("r1") == 0


plain = st.fixed_dictionaries(
    {"type": st.just("BlockStored"), "block_hashes": st.lists(st.integers(0, 6), min_size=1, max_size=2)},
    optional={"lora_name": st.sampled_from([None, "sql"])},
)
gone = st.fixed_dictionaries({"type": st.just("BlockRemoved"), "block_hashes": st.lists(st.integers(0, 6), max_size=2)})
everything_gone = st.just({"type": "AllBlocksCleared"})
ARRAYS = {
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
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
}


def filled(event, parent=None, group=0):
    if "block_hashes" not in event:
        return event
    told = event | {"medium": "GPU", "group_idx": group}
    if event["type"] == "BlockStored":
        tokens = [token for found in event["block_hashes"] for token in [found] * SIZE]
        told |= {"parent_block_hash": parent, "token_ids": tokens, "block_size": SIZE}
        told |= {"lora_id": None, "extra_keys": [None] * len(event["block_hashes"])}
    return told


def as_array(event):
    return [event["type"], *(event.get(field) for field in ARRAYS.get(event["type"], ()))]


@given(
    st.lists(
        st.lists(
            st.builds(
                filled, plain | gone | everything_gone, st.none() | st.integers(0, 6), st.sampled_from([0, 0, 1])
            ),
            max_size=30,
        ),
        max_size=6,
    )
)
def test_the_straight_way_and_the_long_one_come_to_the_same(batches):
    """Maps go the straight way where they can; the same events as arrays never do."""
    straight, long = Told(), Told()
    for number, happened in enumerate(batches):
        for told, form in ((straight, list), (long, lambda happened: [as_array(event) for event in happened])):
            payload = msgspec.msgpack.encode([1.0, form(happened), 0])
            list(told.publishers["r1"].take(number, payload))
        one, other = straight.publishers["r1"], long.publishers["r1"]
        assert +one.blocks.counts == +other.blocks.counts
        assert one.faults == other.faults
        assert len(one.blocks) == len(other.blocks)
        assert straight.fleet.held_blocks("r1") == long.fleet.held_blocks("r1")
    for path in ([0], [0, 1], [1, 2, 3], [3, 2]):
        tokens = [token for found in path for token in [found] * SIZE]
        assert straight.matched(tokens) == long.matched(tokens)


def test_who_told_no_block_with_a_key_does_not_count_as_telling():
    """Its blocks continue some that were told before anybody listened: what was sent to it is all that is known."""
    told = Told()
    for number in range(2):
        orphan = filled({"type": "BlockStored", "block_hashes": [5]}, 4)
        list(told.publishers["r1"].take(number, msgspec.msgpack.encode([1.0, [orphan], 0])))
    assert told.publishers["r1"].blocks.counts == {"orphan": 2}
    assert not told.fleet.tells("r1")


def test_decoding_goes_the_straight_way():
    told = Told()
    publisher = told.publishers["r1"]
    first = filled({"type": "BlockStored", "block_hashes": [1]})
    then = [filled({"type": "BlockStored", "block_hashes": [at]}, at - 1) for at in range(2, 300)]
    items = batch(msgspec.msgpack.encode([1.0, then, 0])).items
    assert publisher.blocks.straight(items, 0) == 0, "nothing is known yet"
    list(publisher.take(0, msgspec.msgpack.encode([1.0, [first], 0])))
    assert publisher.blocks.straight(items, 0) == 255, "a run is full"
    assert told.fleet.held_blocks("r1") == 256
    removed = [filled({"type": "BlockRemoved", "block_hashes": [at]}) for at in (256, 255, 9999)]
    assert publisher.blocks.straight(batch(msgspec.msgpack.encode([1.0, removed, 0])).items, 0) == 2
    assert publisher.blocks.counts == {"stored": 256, "removed": 2}
