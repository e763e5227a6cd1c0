"""From an engine's events to the router's own keys: always what the engine holds, never what was not told."""

import base64
import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.blocks import Chain, block_keys, packed
from policies.fleet import Fleet
from policies.types import Request
from router import kv_blocks
from router.kv_blocks import COUNTED, PIECE_BLOCKS, BlockSizeError, EngineBlocks
from router.kv_wire import Cleared, Removed, Stored, batch

RECORDINGS = Path(__file__).parents[1] / "recordings"
MODEL = "m"


def recorded(name):
    return json.loads(gzip.decompress((RECORDINGS / name).read_bytes()))


class Engine:
    """Blocks that are told to a fleet with one replica."""

    def __init__(self, block_tokens=4):
        self.fleet = Fleet(block_tokens)
        self.fleet.joined("r1")
        self.blocks = EngineBlocks(
            block_tokens=block_tokens,
            root=lambda adapter, salt: Chain.root(MODEL, adapter, salt),
            stored=lambda keys, before: self.fleet.stored("r1", keys, before),
            removed=lambda keys: self.fleet.removed("r1", keys),
            told=lambda: self.fleet.telling("r1"),
        )

    def stored(
        self,
        hashes,
        tokens,
        parent=None,
        size=4,
        extra=None,
        adapter="",
        medium="GPU",
        group=0,
        kind=None,
        number=None,
    ):
        event = Stored(list(hashes), parent, list(tokens), size, extra, adapter, medium, group, kind, number)
        for _ in self.blocks.stored(event):
            pass

    def removed(self, *hashes, group=0, medium="GPU"):
        self.blocks.removed(Removed(list(hashes), medium, group))

    def matched(self, tokens, adapter="", salt=""):
        keys = block_keys(Chain.root(MODEL, adapter, salt), packed(list(tokens)), self.fleet.block_tokens)
        request = Request("q", "/", "", "", None, None, len(tokens) + 1, None, keys, self.fleet.block_tokens)
        return self.fleet.view(request, 0.0)[0].matched_blocks

    @property
    def counts(self):
        assert set(self.blocks.counts) <= set(COUNTED)
        return {name: count for name, count in self.blocks.counts.items() if count}


A, B, C, D = ([start + at for at in range(4)] for start in (10, 20, 30, 40))


def test_a_prompt_told_in_pieces_is_one_prompt():
    engine = Engine()
    engine.stored([1, 2], A + B)
    engine.stored([3], C, parent=2)
    engine.stored([9], D, parent=1)
    assert engine.matched(A + B + C) == 3
    assert engine.matched(A + D) == 2
    assert engine.matched(B + A) == 0
    assert (len(engine.blocks), engine.fleet.held_blocks("r1")) == (4, 4)


def test_two_copies_take_two_removals():
    engine = Engine()
    engine.stored([1, 2], A + B)
    engine.stored([2], B, parent=1)
    engine.removed(2)
    assert engine.matched(A + B) == 2
    engine.removed(2)
    assert engine.matched(A + B) == 1
    engine.stored([2], B, parent=1)
    assert engine.matched(A + B) == 2


def test_a_child_waits_for_a_parent_that_was_never_told():
    engine = Engine()
    engine.stored([2], B, parent=1)
    engine.stored([3], C, parent=2)
    assert engine.matched(B) == engine.matched(B + C) == engine.matched(A + B + C) == 0
    assert engine.counts == {"orphan": 2}
    engine.stored([1], A)
    assert engine.matched(A + B + C) == 3


def test_what_was_removed_while_it_waited_is_gone():
    engine = Engine()
    engine.stored([2, 3], B + C, parent=1)
    engine.stored([2], B, parent=1)
    engine.removed(3)
    engine.removed(2)
    engine.stored([1], A)
    assert engine.matched(A + B + C) == 2
    assert len(engine.blocks) == 2
    engine.removed(2)
    assert engine.matched(A + B + C) == 1


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(kv_blocks, "_ASIDE_BLOCKS", 10)
    engine = Engine()
    for number in range(100, 200):
        engine.stored([number], A, parent=number + 1000)
    assert repr(engine.blocks).endswith("10 aside>")
    assert len(engine.blocks._aside._copies) == 10


def test_adapters_and_salts_are_prompts_of_their_own():
    engine = Engine()
    engine.stored([1, 2], A + B)
    engine.stored([3, 4], A + B, adapter="sql", extra=[["sql"], ["sql"]])
    engine.stored([5, 6], A + C, extra=[["tenant-a"], None])
    engine.stored([7, 8], A + C, adapter="sql", extra=[["sql", "tenant-a"], ["sql"]])
    engine.stored([9], D, parent=6)
    assert engine.matched(A + B) == engine.matched(A + B, adapter="sql") == 2
    assert engine.matched(A + C) == 1
    assert engine.matched(A + C + D, salt="tenant-a") == 3
    assert engine.matched(A + C, salt="tenant-b") == 0
    assert engine.matched(A + C, adapter="sql", salt="tenant-a") == 2


def test_an_adapter_loaded_from_elsewhere_has_what_was_told_since():
    engine = Engine()
    engine.stored([1, 2], A + B)
    for number in (1, 2):  # of the number told last there may be blocks from before as well as since
        engine.stored([10 * number, 10 * number + 1], A + C, adapter="sql", number=number)
    engine.stored([30, 31], A + D, adapter="poems", number=3)
    for left in (1, 0):
        for _ in engine.blocks.reloaded("sql"):
            pass
        assert engine.blocks._runs.copies == 4 + 2 * left
        assert engine.matched(A + C, adapter="sql") == 2 * left
    assert engine.matched(A + B) == engine.matched(A + D, adapter="poems") == 2
    assert engine.counts == {"stored": 8, "reloaded": 4}


def test_tagged_extra_keys():
    engine = Engine()
    engine.stored([1], A, adapter="sql", extra=[[["lora", "sql", "/adapters/sql"], ["cache_salt", "tenant-a"]]])
    assert engine.matched(A, adapter="sql", salt="tenant-a") == 1


@pytest.mark.parametrize("extra", [[["img", 2]], [["mm", "img", 0]], ["salt-here"], [3], ["a", "b"]], ids=str)
def test_a_block_that_holds_more_than_tokens_has_no_key(extra):
    engine = Engine()
    engine.stored([1, 2, 3], A + B + C, extra=[None, extra, None])
    engine.stored([4], D, parent=3)
    assert engine.matched(A + B + C + D) == 1
    assert engine.counts == {"stored": 1, "without_key": 3}
    engine.removed(4, 3, 2)
    assert engine.counts == {"stored": 1, "without_key": 3, "removed": 3}


def test_an_adapter_that_is_only_a_number_has_no_key():
    engine = Engine()
    engine.stored([1], A, adapter=None)
    engine.stored([2], B, parent=1)
    assert engine.matched(A + B) == 0
    assert engine.counts == {"without_key": 2}


def test_only_full_attention_on_the_gpu_counts():
    engine = Engine()
    engine.stored([1], A, group=0, kind="full_attention")
    engine.stored([1], A, group=1, kind="sliding_window")
    engine.stored([2], B, parent=1, medium="CPU")
    engine.removed(1, group=1)
    engine.removed(1, medium="CPU")
    assert engine.matched(A + B) == 1
    assert engine.counts == {"stored": 1, "other_cache": 4}
    engine.removed(1, group=0)
    assert engine.matched(A) == 0


def test_a_store_that_contradicts_itself_costs_only_itself():
    engine = Engine()
    chain = [token for block in range(10) for token in range(block * 4, block * 4 + 4)]
    engine.stored(range(10), chain)
    engine.stored([50, 50], A + A, parent=9)
    engine.stored([9], A, parent=9)
    engine.stored([3], A, parent=2)
    assert engine.matched(chain) == 10
    assert engine.counts["contradicting"] == 4


@pytest.mark.parametrize("bad", [-1, 1 << 32, "7", 1.5, None])
def test_token_ids_out_of_range(bad):
    engine = Engine()
    engine.stored([1], [*A[:3], bad])
    engine.stored([2], A)
    assert engine.counts == {"bad_tokens": 1, "stored": 1}
    assert engine.matched(A) == 1


@pytest.mark.parametrize("engine_block_tokens", [8, 16])
def test_engine_blocks_that_are_larger(engine_block_tokens):
    engine = Engine(block_tokens=4)
    tokens = list(range(engine_block_tokens * 3))
    engine.stored([1, 2], tokens[: engine_block_tokens * 2], size=engine_block_tokens)
    engine.stored([3], tokens[engine_block_tokens * 2 :], parent=2, size=engine_block_tokens)
    assert engine.matched(tokens) == len(tokens) // 4
    engine.removed(3, 2)
    assert engine.matched(tokens) == engine_block_tokens // 4


@pytest.mark.parametrize("told", [[4], [1, 3], [2, 2], [1, 1, 1, 1]], ids=str)
def test_engine_blocks_that_are_smaller(told):
    engine = Engine(block_tokens=8)
    tokens = list(range(16))
    at = 0
    for blocks in told:
        hashes = range(at + 1, at + blocks + 1)
        engine.stored(hashes, tokens[at * 4 : (at + blocks) * 4], parent=at or None)
        at += blocks
        assert engine.matched(tokens) == at // 2
    engine.stored([9, 10], [7] * 8, parent=1)
    assert engine.matched([*tokens[:4], *[7] * 4]) == 1
    engine.removed(4)
    assert engine.matched(tokens) == 1
    engine.removed(3, 2)
    assert engine.matched(tokens) == 0


@pytest.mark.parametrize("sizes", [(6,), (3,), (4, 8)], ids=str)
def test_sizes_that_do_not_go_into_each_other(sizes):
    engine = Engine(block_tokens=4)
    *good, bad = sizes
    for size in good:
        engine.stored([1], range(size), size=size)
    with pytest.raises(BlockSizeError, match=f"blocks of {bad}"):
        engine.stored([2], range(bad), size=bad)
    assert engine.matched(range(8)) == len(sizes) - 1


def test_more_than_the_engine_can_hold_is_given_up_oldest_first():
    engine = Engine()
    engine.blocks.limit_blocks = 100
    for number in range(200):
        engine.stored([number + 1], [number] * 4)
        assert len(engine.blocks) <= 100
    assert engine.fleet.held_blocks("r1") == len(engine.blocks)
    assert engine.matched([0] * 4) == 0
    assert engine.matched([199] * 4) == 1
    for _ in range(300):
        engine.stored([200], [199] * 4)
    for _ in range(100):
        engine.removed(200)
    assert engine.matched([199] * 4) == 0, "an engine of 100 blocks can't have held more copies"


def test_long_prompts_span_runs():
    engine = Engine(block_tokens=2)
    tokens = list(range(2 * 1000))
    engine.stored(range(1, 1001), tokens, size=2)
    assert engine.matched(tokens) == 1000
    for branch in (1, 255, 256, 257, 512, 999):
        engine.stored([5000 + branch], [7, 7], parent=branch, size=2)
        assert engine.matched([*tokens[: branch * 2], 7, 7]) == branch + 1
    engine.removed(*range(1000, 0, -1))
    assert len(engine.blocks) == engine.fleet.held_blocks("r1") == 6
    engine.removed(*(5000 + branch for branch in (1, 255, 256, 257, 512, 999)))
    assert "0 blocks in 0 runs" in repr(engine.blocks)


def test_forgotten_tells_the_fleet_in_pieces():
    engine = Engine(block_tokens=2)
    engine.stored(range(1, 1001), range(2000), size=2)
    engine.stored([1], [0, 1], size=2)
    held = [1000, *(engine.fleet.held_blocks("r1") for _ in engine.blocks.forgotten())]
    assert held == sorted(held, reverse=True)
    assert 0 < max(before - after for before, after in pairwise(held)) <= 2 * PIECE_BLOCKS
    assert len(engine.blocks) == engine.fleet.held_blocks("r1") == 0


# -- against what is true ------------------------------------------------------------------------------------------

paths = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
facts = st.one_of(
    st.tuples(st.just("stored"), paths, st.integers(0, 6)),
    st.tuples(st.just("removed"), paths, st.just(0)),
    st.tuples(st.just("cleared"), st.just(()), st.just(0)),
)


def tokens_of(path, size):
    return [token for part in path for token in range(part * 100, part * 100 + size)]


def engine_hash(path):
    return int.from_bytes(bytes(part + 1 for part in path), "big")


@settings(max_examples=300)
@given(st.lists(facts, max_size=40), paths, st.sampled_from([(4, 4), (4, 8), (4, 16)]))
def test_it_equals_a_bag_of_the_engine_s_blocks(told, asked, sizes):
    """Whatever is told in whatever order: a block counts when it was told and so was every one before it, ever."""
    ours, theirs = sizes
    engine = Engine(block_tokens=ours)
    bag = Counter()
    for kind, path, known in told:
        if kind == "stored":
            start = min(known, len(path) - 1)
            depths = range(start + 1, len(path) + 1)
            engine.stored(
                [engine_hash(path[:depth]) for depth in depths],
                tokens_of(path[start:], theirs),
                parent=engine_hash(path[:start]) if start else None,
                size=theirs,
            )
            bag.update(path[:depth] for depth in depths)
        elif kind == "removed":
            engine.removed(engine_hash(path))
            bag -= Counter([path])
        else:
            engine.fleet.cleared("r1")
            engine.blocks.cleared()
            bag.clear()
    present = next((depth for depth in range(len(asked)) if asked[: depth + 1] not in bag), len(asked))
    assert engine.matched(tokens_of(asked, theirs)) <= present * (theirs // ours)
    if not engine.blocks.counts["orphan"]:
        assert engine.matched(tokens_of(asked, theirs)) == present * (theirs // ours)
        assert len(engine.blocks) == len(bag)
        assert engine.fleet.held_blocks("r1") == len(bag) * (theirs // ours)
    for path, copies in bag.items():
        engine.removed(*[engine_hash(path)] * copies)
    assert len(engine.blocks) == engine.fleet.held_blocks("r1") == 0


def test_the_recorded_engine_holds_what_its_events_imply():
    """A running engine's batches, and after each request what its next repetition would have hit."""
    engine = Engine(block_tokens=16)
    bag = Counter()
    for step in recorded("kv_events_int64.json.gz"):
        for sent in step["batches"]:
            for event in batch(base64.b64decode(sent["payload_b64"])).events():
                if isinstance(event, Stored):
                    for _ in engine.blocks.stored(event):
                        pass
                    bag.update(event.hashes)
                elif isinstance(event, Cleared):
                    engine.fleet.cleared("r1")
                    engine.blocks.cleared()
                    bag.clear()
        assert len(engine.blocks) == len(bag)
        prompt = (step["body"] or {}).get("prompt")
        if step["usage"] and isinstance(prompt[0], int):
            salt = step["body"].get("cache_salt", "")
            usable = prompt[: (len(prompt) - 1) // 32 * 32] if len(prompt) % 32 else prompt
            assert engine.matched(usable, salt=salt) == len(usable) // 32 * 2, step["name"]
    assert engine.blocks.engine_block_tokens == 32


def test_the_recorded_adapters():
    engine = Engine(block_tokens=32)
    for step in recorded("kv_events_lora.json.gz"):
        for sent in step["batches"]:
            for event in batch(base64.b64decode(sent["payload_b64"])).events():
                for _ in engine.blocks.stored(event):
                    pass
        body = step["body"]
        adapter = "" if body["model"] == "tiny" else body["model"]
        assert engine.matched(body["prompt"], adapter=adapter, salt=body.get("cache_salt", "")) == 2
    assert engine.counts == {"stored": 8}
