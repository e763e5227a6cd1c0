"""An engine that delivers nothing of what its events told, three times in a row, is not believed any more."""

from itertools import count

import pytest
from msgspec.structs import replace

from router.kv_doubts import Doubts
from router.metrics import Outcome
from tests.router.test_losses import DONE, REQUEST, fleet_of, placed

MISS = replace(DONE, predicted_tokens=64, delivered_tokens=0, prompt_tokens=REQUEST.prompt_tokens)


def disbelieved(*outcomes: Outcome) -> list[str]:
    fleet = fleet_of("r1")
    found: list[str] = []
    ends_s = count(1000)
    doubts = Doubts(found.append, lambda: next(ends_s))
    for outcome in outcomes:
        doubts.ended(placed(fleet, "r1"), outcome)
    return found


def test_three_in_a_row() -> None:
    assert disbelieved(MISS, MISS) == []
    assert disbelieved(MISS, MISS, MISS) == ["r1"]
    assert disbelieved(*[MISS] * 5) == ["r1"]
    assert disbelieved(MISS, MISS, replace(MISS, replica="r2"), MISS) == ["r1"]
    assert disbelieved(*[MISS] * 6) == ["r1", "r1"]


def test_who_began_before_proves_nothing_more() -> None:
    """A hundred were on their way, placed by what nobody believes any more."""
    older = replace(MISS, duration_s=500.0)
    assert disbelieved(*[older] * 100) == ["r1"]
    assert disbelieved(*[older] * 3, replace(older, replica="r2"), *[MISS] * 3) == ["r1", "r1"]


def test_one_cached_token_begins_anew() -> None:
    assert disbelieved(MISS, MISS, replace(MISS, delivered_tokens=16), MISS, MISS) == []


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
    assert disbelieved(*[replace(MISS, **nothing)] * 5) == []


def test_nothing_is_kept_of_a_replica_that_has_left() -> None:
    found: list[str] = []
    fleet = fleet_of("r1")
    ends_s = count(1000)
    doubts = Doubts(found.append, lambda: next(ends_s))
    for _ in range(2):
        doubts.ended(placed(fleet, "r1"), MISS)
    doubts.forgotten("r1")
    for _ in range(2):
        doubts.ended(placed(fleet, "r1"), MISS)
    assert found == []
    doubts.ended(placed(fleet, "r1"), MISS)
    assert found == ["r1"]
