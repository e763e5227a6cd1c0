"""What every format gives its readers."""

import pytest

from sim.traces.format import UNITS_S, Reading, having, stateless


def test_the_users_unit_overrules_the_usual_one():
    assert Reading().unit_s("ms") == 1e-3
    assert Reading(time_unit="s").unit_s("ms") == 1.0
    assert set(UNITS_S) == {"s", "ms", "us", "ns"}


@pytest.mark.parametrize(("item", "wanted"), [({"a": 1, "b": None}, True), ({"a": 1}, False)])
def test_a_format_is_known_by_its_members(item, wanted):
    assert having("a", "b")(item) is wanted


def test_a_stateless_reader_is_the_same_for_all():
    read = stateless(lambda item: [])
    assert read(Reading()) is read(Reading(16))
