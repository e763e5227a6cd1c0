"""The rows of the book start out empty: unknown is None, and a replica that joins may be chosen."""

from policies.correction import Capacity
from policies.entries import Entry
from policies.flights import Report


def test_what_is_not_said_is_none() -> None:
    assert {getattr(Report(), name) for name in Report.__struct_fields__} == {None}


def test_a_new_replica_is_open_and_idle() -> None:
    entry = Entry("r1", 1.0, None, Capacity(None, 50_000))
    assert (entry.open, entry.present, entry.caching, entry.flights, entry.row) == (True, True, True, {}, None)
