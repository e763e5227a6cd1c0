"""Members of a row: what they must be, and the reason when they are not."""

import pytest

from sim.traces.rows import BadRow, listed, members, moment, name_of, seconds, seconds_or_none, tokens, tokens_or_none

COUNTS = [(7, 7), ("7", 7), (7.0, 7), ("7.0", 7), (0, 0)]


@pytest.mark.parametrize(("value", "wanted"), COUNTS)
def test_a_count(value, wanted):
    assert tokens({"n": value}, "n") == wanted


BAD = [
    (None, "missing"),
    (-1, "negative"),
    (1.5, "no whole number"),
    ("x", "no number"),
    (True, "no number"),
    ([], "no number"),
]


@pytest.mark.parametrize(("value", "reason"), [*BAD, (float("inf"), "no number")])
def test_no_count(value, reason):
    with pytest.raises(BadRow, match=f"^n is {reason}$"):
        tokens({"n": value}, "n")


def test_the_first_member_that_is_there_counts():
    assert tokens_or_none({"a": None, "b": 3}, "a", "b") == 3
    assert tokens_or_none({"a": ""}, "a") is None
    assert name_of({"a": "", "b": 5}, "a") is None
    assert name_of({"b": 5}, "a", "b") == "5"
    assert name_of({"b": ["x"]}, "b") is None


def test_seconds_have_a_unit():
    assert seconds({"t": 1500}, "t", 1e-3) == 1.5
    assert seconds_or_none({}, "t") is None
    with pytest.raises(BadRow, match="t is missing"):
        seconds({}, "t")


MOMENTS = [
    (1700000000.25, 1700000000.25),
    ("2023-11-14T22:13:20.250Z", 1700000000.25),
    ("2023-11-14 22:13:20.2500001", 1700000000.25),
    ("2023-11-14T23:13:20.25+01:00", 1700000000.25),
]


@pytest.mark.parametrize(("told", "wanted"), MOMENTS)
def test_a_moment(told, wanted):
    assert moment({"at": told}, "at") == pytest.approx(wanted, abs=1e-6)


def test_no_moment():
    assert moment({}, "at") is None
    with pytest.raises(BadRow, match="at is no time"):
        moment({"at": "yesterday"}, "at")


def test_objects_and_lists():
    with pytest.raises(BadRow, match="a is no object"):
        members({"a": 1}, "a")
    with pytest.raises(BadRow, match="a is no list"):
        listed({"a": "text"}, "a")
