"""What is kept for a replica stays while it is away for a while, and goes when it is away for long."""

from policies.roster import SWEEP_CHOICES, Roster


def test_each_name_has_its_own_and_keeps_it() -> None:
    roster: Roster[list[int]] = Roster(lambda _: [])
    one, two = roster.offered(["one", "two"])
    one.append(1)
    assert roster.offered(["two", "one"]) == [two, one] == [[], [1]]
    assert (len(roster), roster.names, roster.changes) == (2, ["one", "two"], 2)


def test_it_is_made_by_name() -> None:
    assert Roster(str.upper).offered(["one", "two"]) == ["ONE", "TWO"]


def test_away_for_a_while_is_not_gone() -> None:
    roster: Roster[list[int]] = Roster(lambda _: [])
    roster.offered(["one", "two"])[1].append(2)
    for _ in range(SWEEP_CHOICES - 2):
        roster.offered(["one"])
    assert roster.offered(["one", "two"]) == [[], [2]]


def test_away_for_long_is_forgotten() -> None:
    roster: Roster[list[int]] = Roster(lambda _: [])
    for number in range(50):
        roster.offered(["one", f"gone-{number}"])[0].append(number)
    for _ in range(2 * SWEEP_CHOICES):
        roster.offered(["one"])
    assert roster.names == ["one"]
    assert roster.offered(["one"]) == [list(range(50))]
    assert roster.changes == 101
