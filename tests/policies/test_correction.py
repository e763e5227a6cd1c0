"""The fitted capacity comes to the true one, from above and from below, and stays there."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.correction import ERRING, LEAST_FACTOR, MOST_FACTOR, STEP, Capacity
from policies.fleet import Fleet, Report
from policies.types import Request
from sim.kv_cache import KvCache

BLOCK = 16


def key(conversation: int, place: int) -> bytes:
    return conversation.to_bytes(8, "big") + place.to_bytes(8, "big")


class Chats:
    """Conversations of Zipf popularity that grow by a prompt and an answer a turn, and end after some turns."""

    def __init__(self, seed: int, *, open_at_once: int, answer_blocks: int = 4) -> None:
        self.draw = random.Random(seed)
        self.answer_blocks = answer_blocks
        self.lengths: dict[int, int] = {}
        self.open_at_once = open_at_once
        self.count = 0
        self.asked = 0

    def next(self) -> tuple[Request, tuple[bytes, ...]]:
        """A request, and all its blocks once it is answered."""
        while len(self.lengths) < self.open_at_once:
            self.count += 1
            self.lengths[self.count] = 10
        names = list(self.lengths)
        name = names[min(int(self.draw.paretovariate(0.7)) - 1, len(names) - 1)]
        blocks = self.lengths[name] + self.draw.randrange(2, 10)
        self.asked += 1
        keys = tuple(key(name, place) for place in range(blocks + self.answer_blocks))
        self.lengths[name] = len(keys)
        if len(keys) > 120:
            del self.lengths[name]
        tokens = blocks * BLOCK + 1
        return Request(str(self.asked), "/v1", "m", "", None, None, tokens, None, keys[:blocks], BLOCK), keys


class Mirrored:
    """One true cache, and a router's belief of it."""

    def __init__(self, true_blocks: int, believed_blocks: int | None) -> None:
        self.cache = KvCache(true_blocks + 1, BLOCK)
        self.fleet = Fleet(BLOCK)
        self.fleet.joined("r", capacity_blocks=believed_blocks)
        self.errors: deque[tuple[int, int]] = deque(maxlen=300)

    def served(self, request: Request, keys: tuple[bytes, ...], *, correcting: bool = True) -> None:
        [row] = self.fleet.view(request, 0.0)
        self.fleet.sent(request, "r")
        found = self.cache.matched(keys, len(request.blocks))
        self.cache.pinned(found)
        held = found + self.cache.allocated(len(keys) - len(found))
        self.cache.filled(held, keys, len(found), len(keys))
        self.cache.released(held)
        self.fleet.first_token(request)
        if correcting:
            self.fleet.delivered(request, len(found) * BLOCK)
        self.fleet.done(request, keys[len(request.blocks) :])
        self.errors.append((abs(row.matched_blocks - len(found)), len(request.blocks)))

    @property
    def wrong_fraction(self) -> float:
        """Blocks predicted wrongly, of all blocks asked for, in the last requests."""
        return sum(wrong for wrong, _ in self.errors) / sum(blocks for _, blocks in self.errors)


def run(true_blocks: int, believed_blocks: int | None, requests: int, *, correcting: bool = True) -> Mirrored:
    mirrored, chats = Mirrored(true_blocks, believed_blocks), Chats(1, open_at_once=100)
    for _ in range(requests):
        mirrored.served(*chats.next(), correcting=correcting)
    return mirrored


def fitted(mirrored: Mirrored) -> int:
    [row] = mirrored.fleet.view(Chats(2, open_at_once=1).next()[0], 0.0)
    assert row.capacity_blocks is not None
    return row.capacity_blocks


@pytest.mark.parametrize(("factor", "within"), [(0.5, (0.75, 1.25)), (1.0, (0.8, 1.2)), (2.0, (0.75, 1.25))])
def test_the_fit_comes_to_the_true_capacity(factor: float, within: tuple[float, float]) -> None:
    true = 1_500
    assert within[0] * true < fitted(run(true, int(true * factor), 2_000)) < within[1] * true


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_predictions_come_nearer_to_what_is_delivered(factor: float) -> None:
    true = 1_500
    uncorrected = run(true, int(true * factor), 2_000, correcting=False)
    corrected = run(true, int(true * factor), 2_000)
    assert corrected.wrong_fraction < 0.5 * uncorrected.wrong_fraction


def test_a_replica_of_unknown_size_is_found_out() -> None:
    mirrored, chats = Mirrored(700, None), Chats(3, open_at_once=60)
    mirrored.fleet = Fleet(BLOCK, unknown_capacity_blocks=2_000)
    mirrored.fleet.joined("r")
    for _ in range(2_000):
        mirrored.served(*chats.next())
    assert 500 < fitted(mirrored) < 1_000


reports = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.booleans()), max_size=300)


@settings(deadline=None)
@given(reports, st.none() | st.integers(0, 10**7))
def test_the_fit_is_bounded_and_moves_in_small_steps(told: list[tuple[int, int, bool]], stated: int | None) -> None:
    capacity = Capacity(stated, 50_000)
    for predicted, delivered, given_up in told:
        before = capacity.factor
        moved = capacity.told(predicted, delivered, given_up=given_up)
        assert moved or capacity.factor == before
        assert abs(capacity.factor / before - 1) < STEP * 1.2
        assert LEAST_FACTOR <= capacity.factor <= MOST_FACTOR
        assert capacity.limit_blocks is None or capacity.limit_blocks >= 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=100))
def test_what_was_never_known_and_is_delivered_says_nothing(told: list[tuple[int, int]]) -> None:
    capacity = Capacity(100, 50_000)
    for predicted, more in told:
        assert not capacity.told(predicted, predicted + more, given_up=False)
    assert capacity.blocks == 100


def test_errors_of_both_kinds_that_weigh_the_same_move_nothing() -> None:
    capacity = Capacity(100, 50_000)
    for _ in range(10 * ERRING):
        capacity.told(10, 5, given_up=False)
        capacity.told(5, 10, given_up=True)
    assert capacity.blocks == 100


def test_rare_errors_move_little() -> None:
    often, rarely = Capacity(10_000, 50_000), Capacity(10_000, 50_000)
    for _ in range(ERRING):
        often.told(10, 5, given_up=False)
        for _ in range(1000):
            rarely.told(10, 10, given_up=False)
        rarely.told(10, 5, given_up=False)
    assert often.blocks is not None
    assert rarely.blocks is not None
    assert often.blocks < 8_000 < 9_900 < rarely.blocks < 10_000


def test_what_running_requests_pin_beside_prompts_leaves_less_room() -> None:
    fleet = Fleet(BLOCK)
    fleet.joined("r", capacity_blocks=100)
    for name in range(10):
        request = Request(
            str(name), "/v1", "m", "", None, None, 161, None, tuple(key(name, p) for p in range(10)), BLOCK
        )
        fleet.sent(request, "r")
        fleet.first_token(request)
        fleet.done(request)
    assert fleet.held_blocks("r") == 100
    fleet.reported("r", Report(kv_used_fraction=0.4), 1.0)
    assert fleet.held_blocks("r") == 60
    fleet.reported("r", Report(kv_used_fraction=0.0), 2.0)
    assert fleet.held_blocks("r") == 60  # what was evicted does not come back


def test_a_prompt_that_ended_while_the_report_came_is_no_stranger() -> None:
    fleet = Fleet(BLOCK)
    fleet.joined("r", capacity_blocks=100)
    blocks = tuple(key(0, place) for place in range(60))
    for number, held in enumerate((60, 40)):
        request = Request(str(number), "/v1", "m", "", None, None, 961, None, blocks, BLOCK)
        fleet.sent(request, "r")
        if not number:
            fleet.asked("r")
        fleet.done(request)
        fleet.reported("r", Report(kv_used_fraction=0.6), float(number))
        assert fleet.held_blocks("r") == held


def test_pinned_prompts_on_their_way_are_what_the_mirror_holds() -> None:
    capacity = Capacity(100, 50_000)
    capacity.pinned(0.4, 40)
    assert capacity.limit_blocks == 100
    capacity.pinned(0.4, 10)
    assert (capacity.limit_blocks, capacity.blocks) == (70, 100)
    capacity.pinned(0.405, 10)  # too small a change to evict for
    assert capacity.limit_blocks == 70
    capacity.pinned(None, 0)
    assert capacity.limit_blocks == 100
