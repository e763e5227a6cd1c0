"""The rows of the book start out empty: unknown is None, who joins may be chosen, others' load counts."""

from msgspec.structs import replace

from policies.conformance import sample_request
from policies.correction import Capacity
from policies.entries import Entry
from policies.fleet import Fleet
from policies.flights import Report
from policies.types import Request


def test_what_is_not_said_is_none() -> None:
    assert {getattr(Report(), name) for name in Report.__struct_fields__} == {None}


def test_a_new_replica_is_open_and_idle() -> None:
    entry = Entry("r1", 1.0, None, Capacity(None, 50_000))
    assert (entry.open, entry.present, entry.caching, entry.flights, entry.row) == (True, True, True, {}, None)


def served(fleet: Fleet, count: int, name: str = "r1") -> list[Request]:
    sent = [replace(sample_request(), id=f"q{number}") for number in range(count)]
    for one in sent:
        fleet.sent(one, name)
    return sent


def in_flight(fleet: Fleet, now_s: float = 0.0) -> int:
    return fleet.view(sample_request(), now_s)[0].in_flight


def test_another_routers_requests_count_as_load_once_the_replica_told_of_them() -> None:
    """Two routers, each with 20 streams on one replica: by its own book each would see half of them."""
    routers = [Fleet(), Fleet()]
    for fleet in routers:
        fleet.joined("r1")
        served(fleet, 20)
        assert in_flight(fleet) == 20
        fleet.reported("r1", Report(running=36, waiting=4), 0.0)
        assert in_flight(fleet) == 40
        assert fleet.load("r1")[0] == 20  # its own


def test_what_ends_or_comes_while_a_report_is_on_its_way_is_not_taken_for_anothers() -> None:
    fleet = Fleet()
    fleet.joined("r1")
    sent = served(fleet, 4)
    fleet.asked("r1")
    for one in sent[:3]:
        fleet.done(one)
    fleet.reported("r1", Report(running=4), 0.0)  # it was made before they ended
    assert in_flight(fleet) == 1
    fleet.asked("r1")
    fleet.reported("r1", Report(running=0, waiting=0), 1.0)  # our last one has not reached its scheduler yet
    assert in_flight(fleet) == 1
    fleet.reported("r1", Report(running=3), 2.0)
    assert in_flight(fleet) == 3
    fleet.reported("r1", Report(), 3.0)  # silence changes nothing
    assert in_flight(fleet) == 3
    fleet.done(sent[3])
    fleet.left("r1")
    fleet.joined("r1")
    assert in_flight(fleet) == 0
