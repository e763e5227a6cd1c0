"""An engine that delivers nothing of what its events told, three times in a row, is not believed any more."""

import math
from itertools import count

import pytest

from router.kv_doubts import Doubts
from router.outcome import Outcome
from tests.router.outcomes import altered
from tests.router.test_losses import DONE, REQUEST, fleet_of, placed

MISS = altered(DONE, predicted_tokens=64, delivered_tokens=0, prompt_tokens=REQUEST.prompt_tokens)


def disbelieved(*outcomes: Outcome, removed_s: float = -math.inf) -> list[str]:
    fleet = fleet_of("r1")
    found: list[str] = []
    ends_s = count(1000)
    doubts = Doubts(found.append, lambda _: removed_s, lambda: next(ends_s))
    for outcome in outcomes:
        doubts.ended(placed(fleet, "r1"), outcome)
    return found


def test_three_in_a_row() -> None:
    assert disbelieved(MISS, MISS) == []
    assert disbelieved(MISS, MISS, MISS) == ["r1"]
    assert disbelieved(*[MISS] * 5) == ["r1"]
    assert disbelieved(MISS, MISS, altered(MISS, replica="r2"), MISS) == ["r1"]
    assert disbelieved(*[MISS] * 6) == ["r1", "r1"]


def test_who_were_on_their_way_together_prove_it_once() -> None:
    """A hundred placed by one belief: of a prompt that was expected and never computed, for instance."""
    older = altered(MISS, duration_s=500.0)
    assert disbelieved(*[older] * 100) == []
    assert disbelieved(*[older] * 100, MISS) == []
    assert disbelieved(*[older] * 100, MISS, MISS) == ["r1"]


def test_what_was_given_up_meanwhile_proves_nothing() -> None:
    """The cache is small: what was there when a request was placed made room before its turn."""
    assert disbelieved(*[MISS] * 3, removed_s=1002.0) == []
    assert disbelieved(*[MISS] * 6, removed_s=1002.0) == ["r1"]


def test_one_cached_token_begins_anew() -> None:
    assert disbelieved(MISS, MISS, altered(MISS, delivered_tokens=16), MISS, MISS) == []


@pytest.mark.parametrize(
    "nothing",
    [
        {"delivered_tokens": None},
        {"predicted_tokens": 0},
        {"predicted_tokens": 7},
        {"basis": "approximate"},
        {"outcome": "client-left"},
        {"prompt_tokens": 1},
    ],
    ids=str,
)
def test_what_proves_nothing(nothing: dict[str, object]) -> None:
    assert disbelieved(*[altered(MISS, **nothing)] * 5) == []


def test_nothing_is_kept_of_a_replica_that_has_left() -> None:
    found: list[str] = []
    fleet = fleet_of("r1")
    ends_s = count(1000)
    doubts = Doubts(found.append, lambda _: -math.inf, lambda: next(ends_s))
    for _ in range(2):
        doubts.ended(placed(fleet, "r1"), MISS)
    doubts.forgotten("r1")
    for _ in range(2):
        doubts.ended(placed(fleet, "r1"), MISS)
    assert found == []
    doubts.ended(placed(fleet, "r1"), MISS)
    assert found == ["r1"]
