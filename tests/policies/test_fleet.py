"""Facts go in, views come out, and the book always balances."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.errors import FleetError
from policies.fleet import Fleet, Report
from policies.prefix_aware import PrefixAware
from policies.types import Request


def request(name: str, blocks: int = 10, *, like: int = 0, own: int = 0, model: str = "m") -> Request:
    """`blocks` leading blocks of prompt number `like`, then `own` blocks nobody else has, then 5 tokens."""
    head = sample_request(like, blocks=128).blocks[:blocks]
    tail = sample_request(hash_of(name), blocks=own).blocks
    return replace(sample_request(), id=name, model=model, blocks=head + tail, prompt_tokens=16 * (blocks + own) + 5)


def hash_of(name: str) -> int:
    return 1_000_000 + int.from_bytes(name.encode())


def fleet_of(*names: str, block_tokens: int = 16, capacity_blocks: int | None = None) -> Fleet:
    fleet = Fleet(block_tokens)
    for name in names:
        fleet.joined(name, capacity_blocks=capacity_blocks)
    return fleet


def matched(fleet: Fleet, asked: Request) -> dict[str, int]:
    return {replica.name: replica.matched_blocks for replica in fleet.view(asked, 0.0)}


def test_nothing_has_happened() -> None:
    assert repr(Fleet()) == "<Fleet empty>"
    assert Fleet().view(request("q"), 0.0) == ()
    assert Fleet().models() == Fleet().replicas() == ()


A, B = request("a"), request("b", own=2)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param([lambda f: None], "r1 0 in flight 0 pending 0 held", id="joined"),
        pytest.param([lambda f: f.sent(A, "r1")], "r1 1 in flight 165 pending 10 held", id="sent counts at once"),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.sent(B, "r1")],
            "r1 2 in flight 202 pending 12 held",
            id="the second is warm",
        ),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.first_token(A)],
            "r1 1 in flight 0 pending 10 held",
            id="prefill over",
        ),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.first_token(A), lambda f: f.done(A)],
            "r1 0 in flight 0 pending 10 held",
            id="done",
        ),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.done(A, (b"o" * 16,))],
            "r1 0 in flight 0 pending 11 held",
            id="done with output",
        ),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.failed(A)], "r1 0 in flight 0 pending 0 held", id="failed"
        ),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.first_token(A), lambda f: f.failed(A)],
            "r1 0 in flight 0 pending 10 held",
            id="failed after its prompt was computed",
        ),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.cleared("r1")], "r1 1 in flight 165 pending 0 held", id="cleared"
        ),
        pytest.param([lambda f: f.closed("r1")], "r1 closed 0 in flight 0 pending 0 held", id="closed"),
        pytest.param(
            [lambda f: f.closed("r1"), lambda f: f.opened("r1")], "r1 0 in flight 0 pending 0 held", id="opened"
        ),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.left("r1"), lambda f: f.joined("r1")],
            "r1 1 in flight 165 pending 0 held",
            id="left and back: its live request still counts",
        ),
        pytest.param(
            [
                lambda f: f.sent(A, "r1"),
                lambda f: f.left("r1"),
                lambda f: f.joined("r1"),
                lambda f: f.first_token(A),
                lambda f: f.done(A),
            ],
            "r1 0 in flight 0 pending 0 held",
            id="left, back, done",
        ),
        pytest.param([lambda f: f.left("r1")], "empty", id="left"),
        pytest.param(
            [lambda f: f.sent(A, "r1"), lambda f: f.left("r1"), lambda f: f.done(A), lambda f: f.joined("r2")],
            "r2 0 in flight 0 pending 0 held",
            id="done after its replica left",
        ),
    ],
)
def test_facts_make_the_book(facts: list[Callable[[Fleet], None]], expected: str) -> None:
    fleet = fleet_of("r1")
    for fact in facts:
        fact(fleet)
    assert repr(fleet) == f"<Fleet {expected}>"


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        (lambda f: f.joined("r1"), "'r1' joined twice"),
        (lambda f: f.joined("r2", weight=0.0), "weight 0"),
        (lambda f: f.weighed("r1", 0.0), "weight 0"),
        (lambda f: f.weighed("r9", 1.0), "no replica 'r9'"),
        (lambda f: f.left("r9"), "no replica 'r9'"),
        (lambda f: f.opened("r9"), "no replica 'r9'"),
        (lambda f: f.closed("r9"), "no replica 'r9'"),
        (lambda f: f.is_open("r9"), "no replica 'r9'"),
        (lambda f: f.serves("r9", None), "no replica 'r9'"),
        (lambda f: f.cleared("r9"), "no replica 'r9'"),
        (lambda f: f.load("r9"), "no replica 'r9'"),
        (lambda f: f.reported("r9", Report(), 0.0), "no replica 'r9'"),
        (lambda f: f.sent(request("new"), "r9"), "no replica 'r9'"),
        (lambda f: f.sent(A, "r1"), "'a' was sent twice"),
        (lambda f: (f.first_token(A), f.first_token(A)), "'a' had its first token twice"),
        (lambda f: (f.done(A), f.done(A)), "'a' is not on its way"),
        (lambda f: (f.done(A), f.failed(A)), "'a' is not on its way"),
        (lambda f: (f.failed(A), f.first_token(A)), "'a' is not on its way"),
        (lambda f: f.done(B), "'b' is not on its way"),
    ],
)
def test_a_fact_that_can_not_be_is_refused(fact: Callable[[Fleet], object], message: str) -> None:
    fleet = fleet_of("r1")
    fleet.sent(A, "r1")
    with pytest.raises(FleetError, match=message):
        fact(fleet)


class Days(RuleBasedStateMachine):
    """Any legal order of facts."""

    names = st.sampled_from(["r0", "r1", "r2"])

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.present: set[str] = set()
        self.prefilling: dict[str, tuple[Request, str]] = {}
        self.decoding: dict[str, tuple[Request, str]] = {}
        self.number = 0

    @rule(name=names, capacity=st.sampled_from([None, 5, 30]))
    def join_or_leave(self, name: str, capacity: int | None) -> None:
        if name in self.present:
            self.fleet.left(name)
        else:
            self.fleet.joined(name, capacity_blocks=capacity)
        self.present ^= {name}

    @precondition(lambda self: self.present)
    @rule(data=st.data(), blocks=st.integers(0, 12), like=st.integers(0, 2), own=st.integers(0, 3))
    def send(self, data: st.DataObject, blocks: int, like: int, own: int) -> None:
        self.number += 1
        sent, name = (
            request(str(self.number), blocks, like=like, own=own),
            data.draw(st.sampled_from(sorted(self.present))),
        )
        self.fleet.sent(sent, name)
        self.prefilling[sent.id] = sent, name

    @precondition(lambda self: self.prefilling)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        identity = data.draw(st.sampled_from(sorted(self.prefilling)))
        self.decoding[identity] = self.prefilling.pop(identity)
        self.fleet.first_token(self.decoding[identity][0])

    @precondition(lambda self: self.prefilling or self.decoding)
    @rule(data=st.data(), failed=st.booleans())
    def end(self, data: st.DataObject, failed: bool) -> None:
        identity = data.draw(st.sampled_from(sorted({**self.prefilling, **self.decoding})))
        ended, _ = self.prefilling.pop(identity, None) or self.decoding.pop(identity)
        (self.fleet.failed if failed else self.fleet.done)(ended)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.present)))
        data.draw(
            st.sampled_from(
                [
                    lambda: self.fleet.cleared(name),
                    lambda: self.fleet.closed(name),
                    lambda: self.fleet.opened(name),
                    lambda: self.fleet.reported(name, Report(block_tokens=32, capacity_blocks=6), 0.0),
                    lambda: self.fleet.stored(name, request("told", 4).blocks),
                    lambda: self.fleet.removed(name, request("told", 4).blocks[-1:]),
                ]
            )
        )()

    @invariant()
    def counts_every_request_once(self) -> None:
        flights = [*self.prefilling.values(), *self.decoding.values()]
        for name in self.present:
            in_flight, pending = self.fleet.load(name)
            assert in_flight == sum(where == name for _, where in flights)
            most = sum(sent.prompt_tokens for sent, where in self.prefilling.values() if where == name)
            assert 0 <= pending <= most

    @invariant()
    def tells_of_the_book_as_it_is(self) -> None:
        for asked in (request("asked", 8), request("asked", 3, like=1, own=1)):
            seen = self.fleet.view(asked, 1.0)
            for entry in self.fleet._entries.values():
                entry.row = None
            assert seen == self.fleet.view(asked, 1.0)

    @invariant()
    def forgets_who_is_gone(self) -> None:
        flights = [*self.prefilling.values(), *self.decoding.values()]
        assert set(self.fleet._entries) == self.present | {where for _, where in flights}
        if not self.present:
            assert self.fleet.index_runs == 0

    def teardown(self) -> None:
        for sent, _ in [*self.prefilling.values(), *self.decoding.values()]:
            self.fleet.done(sent)
        for name in self.present:
            assert self.fleet.load(name) == (0, 0)
        assert not self.fleet._flights


Days.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDays = Days.TestCase


def test_a_view_has_what_is_known_and_changes_nothing() -> None:
    fleet = Fleet()
    fleet.joined("r1", weight=2.0, capacity_blocks=100)
    fleet.sent(A, "r1")
    fleet.reported("r1", Report(running=3, waiting=1, kv_used_fraction=0.5), 10.0)
    [replica] = fleet.view(B, 12.5)
    assert fleet.view(B, 12.5) == (replica,)
    assert (replica.in_flight, replica.pending_prefill_tokens, replica.matched_blocks) == (4, 165, 10)
    assert (replica.held_blocks, replica.capacity_blocks, replica.weight) == (10, 100, 2.0)
    assert (replica.engine_running, replica.engine_waiting, replica.engine_kv_used_fraction) == (3, 1, 0.5)
    assert replica.report_age_s == 2.5


def test_a_new_weight_is_in_the_next_view() -> None:
    fleet = fleet_of("r1", "r2")
    assert [replica.weight for replica in fleet.view(A, 0.0)] == [1.0, 1.0]
    fleet.weighed("r2", 0.25)
    assert [replica.weight for replica in fleet.view(A, 0.0)] == [1.0, 0.25]


def test_what_a_replica_that_left_still_serves_is_remembered_until_it_ends() -> None:
    fleet = fleet_of("r1", "r2")
    fleet.sent(A, "r1")
    fleet.left("r1")
    assert (fleet.remaining("r1"), fleet.remaining("r2"), fleet.remaining("r9")) == (1, 0, 0)
    fleet.done(A)
    assert fleet.remaining("r1") == 0


def test_a_view_is_in_the_order_of_joining_and_leaves_out_the_tried() -> None:
    fleet = fleet_of("r2", "r1", "r3")
    assert [replica.name for replica in fleet.view(A, 0.0)] == ["r2", "r1", "r3"]
    assert [replica.name for replica in fleet.view(A, 0.0, without={"r1"})] == ["r2", "r3"]
    fleet.closed("r2")
    assert [replica.name for replica in fleet.view(A, 0.0, without=frozenset({"r1"}))] == ["r3"]
    assert not fleet.is_open("r2")
    assert fleet.replicas() == ("r2", "r1", "r3")


def test_a_model_is_served_where_it_is_served() -> None:
    fleet = fleet_of("r1", "r2", "r3")
    fleet.serves("r1", ["m", "adapter"])
    fleet.serves("r2", ["n"])
    assert fleet.models() == ("adapter", "m", "n")
    assert [replica.name for replica in fleet.view(request("q", model="m"), 0.0)] == ["r1", "r3"], "r3 may"
    fleet.serves("r3", [])
    assert [replica.name for replica in fleet.view(request("q", model="n"), 0.0)] == ["r2"]
    assert fleet.view(request("q", model="x"), 0.0) == ()
    assert len(fleet.view(request("q", model=""), 0.0)) == 3
    fleet.closed("r2")
    assert fleet.models() == ("adapter", "m")
    fleet.serves("r1", None)
    assert [replica.name for replica in fleet.view(request("q", model="x"), 0.0)] == ["r1"]


def test_a_replica_that_comes_back_starts_unknown() -> None:
    fleet = fleet_of("r1")
    fleet.sent(A, "r1")
    fleet.serves("r1", ["n"])
    fleet.closed("r1")
    fleet.reported("r1", Report(running=3, block_tokens=128, capacity_blocks=10), 1.0)
    fleet.left("r1")
    fleet.joined("r1")
    [replica] = fleet.view(A, 2.0)
    assert (replica.engine_running, replica.report_age_s, replica.capacity_blocks) == (None, None, None)
    assert replica.in_flight == 1
    fleet.sent(B, "r1")
    assert matched(fleet, B) == {"r1": 12}, "128 tokens a block was yesterday"


@pytest.mark.parametrize(
    ("engine_block_tokens", "generated_tokens", "known", "held", "most"),
    [
        (16, 0, 0, 10, 0),  # of 165 tokens
        (16, 11, 0, 10, 11),  # the 176th is said, and not computed
        (16, 12, 0, 11, 11),
        (16, 28, 0, 12, 12),
        (16, 28, 2, 12, 12),
        (16, 28, 1, 12, 12),
        (32, 1, 0, 10, 12),
        (64, 1, 0, 8, 12),
        (None, 29, 0, 12, 13),
    ],
)
def test_what_was_generated_takes_room(
    engine_block_tokens: int | None, generated_tokens: int, known: int, held: int, most: int
) -> None:
    fleet = fleet_of("r1", "r2", capacity_blocks=20)
    fleet.reported("r1", Report(block_tokens=engine_block_tokens), 0.0)
    earlier = request("earlier", 0, own=16)
    for asked in (earlier, A):
        fleet.sent(asked, "r1")
        fleet.first_token(asked)
        if asked is A and generated_tokens:
            fleet.generated(asked, generated_tokens)
        fleet.done(asked, request("x", 0, own=known).blocks if asked is A else ())
    left = fleet._index.matched(earlier.blocks)["r1"]
    assert left == min(10, 20 - most)
    assert fleet.held_blocks("r1") == held + left


@pytest.mark.parametrize(
    ("generated_tokens", "answers", "known", "held", "most"),
    [
        (22, 2, 0, 10, 12),  # 11 each: both fill their own copy of the prompt's last block in part
        (24, 2, 0, 12, 12),
        (23, 2, 0, 11, 12),  # one of 12, one of 11
        (3 * 28, 3, 0, 16, 16),
        (3 * 28, 3, 1, 16, 16),
        (1, 4, 0, 10, 14),
    ],
)
def test_each_of_several_answers_takes_room_of_its_own(
    generated_tokens: int, answers: int, known: int, held: int, most: int
) -> None:
    fleet = fleet_of("r1", "r2", capacity_blocks=20)
    earlier = request("earlier", 0, own=16)
    for asked in (earlier, A):
        fleet.sent(asked, "r1")
        fleet.first_token(asked)
        if asked is A:
            fleet.generated(asked, generated_tokens, answers)
        fleet.done(asked, request("x", 0, own=known).blocks if asked is A else ())
    left = fleet._index.matched(earlier.blocks)["r1"]
    assert left == min(10, 20 - most)
    assert fleet.held_blocks("r1") == held + left


@pytest.mark.parametrize(
    ("engine_block_tokens", "blocks", "expected"),
    [(16, 15, 15), (128, 15, 8), (128, 7, 0), (128, 16, 16), (8, 15, 15), (24, 15, 15), (24, 14, 13), (None, 15, 15)],
)
def test_a_match_is_rounded_down_to_whole_engine_blocks(
    engine_block_tokens: int | None, blocks: int, expected: int
) -> None:
    fleet = fleet_of("r1")
    fleet.reported("r1", Report(block_tokens=engine_block_tokens), 0.0)
    fleet.sent(request("q", blocks), "r1")
    assert matched(fleet, request("p", 40)) == {"r1": expected}


def test_capacity_is_counted_in_our_blocks() -> None:
    fleet = fleet_of("r1", "r2")
    fleet.reported("r1", Report(block_tokens=128, capacity_blocks=2), 0.0)
    assert fleet.view(A, 0.0)[0].capacity_blocks == 16
    fleet.sent(request("q", 40), "r1")
    assert fleet.held_blocks("r1") == 16
    fleet.reported("r1", Report(running=1), 1.0)
    assert fleet.view(A, 1.0)[0].capacity_blocks == 16, "silence changes nothing"
    assert matched(fleet, request("p", 15))["r1"] == 8
    assert fleet.view(A, 1.0)[1].capacity_blocks is None


def test_a_configured_capacity_is_not_overruled() -> None:
    fleet = fleet_of("r1", capacity_blocks=30)
    fleet.reported("r1", Report(block_tokens=16, capacity_blocks=5_000), 0.0)
    assert fleet.view(A, 0.0)[0].capacity_blocks == 30


def test_a_burst_of_equal_prompts_meets_before_any_first_token() -> None:
    fleet, policy = fleet_of("r1", "r2", "r3", "r4"), PrefixAware(seed=3)
    used = []
    for number in range(16):
        burst = request(f"burst-{number}", 128, own=4)
        view = fleet.view(burst, 0.0)
        choice = policy.choose(burst, view)
        if number == 1:
            assert max(replica.matched_blocks for replica in view) == 128
        fleet.sent(burst, choice.replica)
        used.append(choice.replica)
    assert len(set(used)) <= 2


def test_a_failed_dispatch_is_withdrawn_though_others_share_its_head() -> None:
    fleet = fleet_of("cold", "warm")
    for number in range(10):
        warm = request(f"w{number}", 4, own=3)
        fleet.sent(warm, "warm")
        fleet.done(warm)
    lost = request("lost", 4, own=3)
    fleet.sent(lost, "cold")
    assert matched(fleet, lost) == {"cold": 7, "warm": 4}
    fleet.failed(lost)
    assert matched(fleet, lost) == {"cold": 0, "warm": 4}


def test_a_failure_takes_nothing_from_a_request_that_brings_the_same() -> None:
    fleet = fleet_of("r1")
    first, second = request("first", 10, own=3), request("second", 10, own=2)
    fleet.sent(first, "r1")
    fleet.sent(second, "r1")
    fleet.failed(first)
    assert matched(fleet, first) == {"r1": 10}
    assert matched(fleet, second) == {"r1": 12}
    fleet.failed(second)
    assert matched(fleet, second) == {"r1": 0}


def test_a_failure_takes_nothing_from_a_request_that_has_been_served() -> None:
    fleet = fleet_of("r1")
    first, second = request("first", 10), request("second", 10)
    fleet.sent(first, "r1")
    fleet.sent(second, "r1")
    fleet.done(second)
    fleet.failed(first)
    assert matched(fleet, first) == {"r1": 10}


def test_a_failure_keeps_what_was_there_in_large_engine_blocks_too() -> None:
    fleet = fleet_of("r1")
    old, new = request("old", 10), request("new", 14)
    fleet.sent(old, "r1")
    fleet.done(old)
    fleet.reported("r1", Report(block_tokens=128), 0.0)
    fleet.sent(new, "r1")
    fleet.failed(new)
    assert fleet.held_blocks("r1") == 10


def test_a_request_that_could_not_be_read_is_load_and_nothing_else() -> None:
    fleet = fleet_of("r1")
    opaque = replace(A, blocks=(), prompt_tokens=700)
    fleet.sent(opaque, "r1")
    assert fleet.load("r1") == (1, 700)
    fleet.failed(opaque)
    assert fleet.load("r1") == (0, 0)
    assert fleet.index_runs == 0


def test_events_are_a_replica_s_word() -> None:
    fleet = fleet_of("r1", "r2")
    fleet.sent(A, "r1")
    fleet.first_token(A)
    fleet.stored("r1", A.blocks[:4])
    fleet.stored("r1", A.blocks[4:6], parent=A.blocks[3])
    assert matched(fleet, A) == {"r1": 6, "r2": 0}
    fleet.removed("r1", A.blocks[5:6])
    assert matched(fleet, A) == {"r1": 5, "r2": 0}
    assert fleet.held_blocks("r1") == 5
    fleet.cleared("r1")
    assert matched(fleet, A) == {"r1": 0, "r2": 0}
    with pytest.raises(FleetError, match="no replica 'r9'"):
        fleet.stored("r9", A.blocks)
    with pytest.raises(FleetError, match="no replica 'r9'"):
        fleet.removed("r9", A.blocks)


def test_many_blocks_of_a_replica_are_entered_at_once() -> None:
    fleet = fleet_of("r1")
    assert not fleet.tells("r1")
    assert matched(fleet, A) == {"r1": 0}
    for count in (3, 2):
        told = fleet.telling("r1")
        if count == 3:
            for before, key in zip((None, *A.blocks), A.blocks[:3], strict=False):
                told.stored_one(key, before)
        else:
            told.removed_one(A.blocks[2])
        assert matched(fleet, A) == {"r1": count}, "no view from before is shown"
    assert fleet.tells("r1")
    fleet.untold("r1")
    told.stored_one(A.blocks[2], A.blocks[1])  # whoever still has it changes nothing
    assert matched(fleet, A) == {"r1": 0}
    with pytest.raises(FleetError, match="no replica 'r9'"):
        fleet.telling("r9")


def test_an_answer_may_be_known_later_than_done() -> None:
    fleet = fleet_of("r1", "r2")
    fleet.sent(A, "r1")
    fleet.first_token(A)
    fleet.done(A)
    longer = replace(A, id="longer", blocks=(*A.blocks, b"x" * 16, b"y" * 16))
    assert matched(fleet, longer) == {"r1": 10, "r2": 0}
    fleet.answered("r1", A, ())
    fleet.answered("r1", A, longer.blocks[10:])
    assert matched(fleet, longer) == {"r1": 12, "r2": 0}
    fleet.left("r1")
    fleet.answered("r1", A, longer.blocks[10:])
    fleet.answered("r9", A, longer.blocks[10:])
    assert matched(fleet, longer) == {"r2": 0}


def test_a_burst_that_fails_leaves_nothing() -> None:
    fleet = fleet_of("r1")
    burst = [request(f"burst-{number}", 10, own=number % 3) for number in range(6)]
    for sent in burst:
        fleet.sent(sent, "r1")
    for lost in burst:
        fleet.failed(lost)
    assert repr(fleet) == "<Fleet r1 0 in flight 0 pending 0 held>"
    assert fleet.index_runs == 0


def test_a_failure_takes_nothing_that_was_computed_meanwhile() -> None:
    fleet = fleet_of("r1")
    first, second = request("first", 10), request("second", 10)
    fleet.sent(first, "r1")
    fleet.sent(second, "r1")
    fleet.first_token(first)
    fleet.failed(first)
    fleet.failed(second)
    assert matched(fleet, second) == {"r1": 10}


def test_what_a_replica_delivers_corrects_its_belief_and_fits_its_capacity() -> None:
    fleet = fleet_of("r1", capacity_blocks=1000)
    sibling = request("sibling", 10, own=5)
    fleet.sent(sibling, "r1")
    fleet.done(sibling)
    for number in range(40):
        asked = request(f"q{number}", 10, own=2)
        fleet.sent(asked, "r1")
        fleet.delivered(asked, 0)
        fleet.done(asked)
        assert matched(fleet, asked) == {"r1": 12}  # it was computed anew
    assert matched(fleet, sibling) == {"r1": 10}
    assert fleet.view(A, 0.0)[0].capacity_blocks == 287


def test_what_is_delivered_beyond_what_was_predicted_is_not_made_up() -> None:
    fleet = fleet_of("r1", capacity_blocks=1000)
    for _ in range(40):
        fleet.sent(B, "r1")
        fleet.delivered(B, 10_000)
        fleet.failed(B)
    assert matched(fleet, B) == {"r1": 0}
    assert fleet.view(A, 0.0)[0].capacity_blocks == 1000


def test_a_replica_that_tells_by_events_is_not_corrected() -> None:
    fleet = fleet_of("r1", capacity_blocks=1000)
    fleet.stored("r1", A.blocks)
    for _ in range(40):
        fleet.sent(A, "r1")
        fleet.delivered(A, 0)
        fleet.done(A)
    assert matched(fleet, A) == {"r1": 10}
    assert fleet.view(A, 0.0)[0].capacity_blocks == 1000


def test_a_replica_that_left_is_not_corrected() -> None:
    fleet = fleet_of("r1")
    fleet.sent(A, "r1")
    fleet.left("r1")
    fleet.delivered(A, 0)
    fleet.done(A)
    with pytest.raises(FleetError, match="not on its way"):
        fleet.delivered(A, 0)


def test_nothing_is_predicted_of_a_replica_without_prefix_caching() -> None:
    fleet = fleet_of("r1", "r2")
    for name in ("r1", "r2"):
        sent = replace(A, id=name)
        fleet.sent(sent, name)
        fleet.done(sent)
    fleet.reported("r1", Report(prefix_caching=False), 0.0)
    assert matched(fleet, A) == {"r1": 0, "r2": 10}
    fleet.reported("r1", Report(), 1.0)  # silence changes nothing
    assert matched(fleet, A) == {"r1": 0, "r2": 10}
    fleet.sent(A, "r1")
    assert fleet.load("r1") == (1, 165)
    fleet.delivered(A, 0)
    fleet.reported("r1", Report(prefix_caching=True), 2.0)
    assert matched(fleet, A) == {"r1": 10, "r2": 10}


def test_events_that_are_given_up_leave_what_was_sent() -> None:
    fleet = fleet_of("r1")
    fleet.sent(A, "r1")
    fleet.done(A)
    fleet.stored("r1", B.blocks)
    assert matched(fleet, B) == {"r1": 12}
    fleet.untold("r1")
    assert matched(fleet, B) == {"r1": 10}
