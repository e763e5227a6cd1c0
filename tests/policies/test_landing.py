"""What was computed but not told yet: engines answer first and publish after."""

from policies.fleet import Fleet, Report
from policies.types import Request
from tests.policies.test_fleet import fleet_of, matched, request

A, OTHER = request("a"), request("other", 4, like=5)


def telling() -> Fleet:
    fleet = fleet_of("r1", "r2")
    fleet.stored("r1", OTHER.blocks)  # it tells by events
    return fleet


def asked(fleet: Fleet, now_s: float, like: Request = A) -> int:
    """Blocks of a prompt that r1 has, as a request sees it."""
    return {replica.name: replica.matched_blocks for replica in fleet.view(like, now_s)}["r1"]


def served(fleet: Fleet, one: Request = A) -> None:
    fleet.sent(one, "r1")
    fleet.first_token(one)
    fleet.done(one)


def test_the_next_request_sees_what_the_one_before_left_though_no_event_came() -> None:
    fleet = telling()
    served(fleet)
    assert asked(fleet, 0.0) == 10
    assert asked(fleet, 0.9) == 10


def test_what_was_not_told_within_a_second_is_not_there() -> None:
    fleet = telling()
    served(fleet)
    assert asked(fleet, 5.0) == 10  # patience begins with the first look
    assert asked(fleet, 6.0) == 0


def test_once_told_its_removal_counts_at_once() -> None:
    fleet = telling()
    served(fleet)
    fleet.stored("r1", A.blocks)
    assert asked(fleet, 0.0) == 10
    fleet.removed("r1", A.blocks[6:])
    assert asked(fleet, 0.1) == 6


def test_what_was_told_and_removed_before_anybody_looked_is_gone() -> None:
    fleet = telling()
    served(fleet)
    fleet.stored("r1", A.blocks)
    fleet.removed("r1", A.blocks[6:])
    assert asked(fleet, 0.0) == 6
    told = request("t", 4, like=3)
    served(fleet, told)
    copies, before = fleet.telling("r1"), None
    for key in told.blocks:
        copies.stored_one(key, before)
        before = key
    fleet.told("r1")
    fleet.removed("r1", told.blocks)
    assert asked(fleet, 0.0, told) == 0


def test_what_was_evicted_and_is_sent_again_is_expected_again() -> None:
    """The router remembers the prompt, the replica told it had given half of it up: a burst must stay together."""
    fleet = telling()
    served(fleet)
    fleet.stored("r1", A.blocks)
    asked(fleet, 0.0)
    fleet.removed("r1", A.blocks[5:])
    assert asked(fleet, 0.1) == 5
    again = request("a2")
    fleet.sent(again, "r1")
    assert matched(fleet, request("a3")) == {"r1": 10, "r2": 0}
    fleet.failed(again)  # it never computed them: what was told counts again
    assert matched(fleet, request("a3")) == {"r1": 5, "r2": 0}


def test_a_replica_that_left_or_was_emptied_is_owed_nothing() -> None:
    fleet = telling()
    served(fleet)
    assert asked(fleet, 0.0) == 10
    fleet.cleared("r1")
    assert asked(fleet, 0.0) == 0
    served(fleet, request("b"))
    fleet.left("r1")
    fleet.joined("r1")
    assert asked(fleet, 0.5) == asked(fleet, 9.0) == 0


def test_a_replica_whose_events_are_given_up_counts_by_what_was_sent() -> None:
    fleet = telling()
    served(fleet)
    fleet.untold("r1")
    assert asked(fleet, 0.0) == 10
    assert asked(fleet, 2.0) == 10


def test_each_prompt_is_awaited_by_itself() -> None:
    fleet = telling()
    first, second = request("a"), request("b", 10, like=2)
    served(fleet, first)
    served(fleet, second)
    assert (asked(fleet, 0.0, first), asked(fleet, 0.0, second)) == (10, 10)
    fleet.stored("r1", second.blocks)
    assert (asked(fleet, 1.0, first), asked(fleet, 1.0, second)) == (0, 10)


def test_who_tells_of_none_of_its_prompts_is_counted() -> None:
    fleet = telling()
    assert fleet.landing.unheard("r1") is None
    for number in range(3):
        served(fleet, request(f"n{number}", 0, own=3))
        asked(fleet, number / 4)
    asked(fleet, 0.9)
    assert fleet.landing.unheard("r1") is None, "it has a second for each"
    asked(fleet, 1.0)
    assert fleet.landing.unheard("r1") == (1, 0.0)
    asked(fleet, 9.0)
    assert fleet.landing.unheard("r1") == (3, 8.0)


def test_one_prompt_it_tells_of_clears_it() -> None:
    fleet = telling()
    for told in (False, True):
        served(fleet)
        asked(fleet, 0.0)
        if told:
            fleet.stored("r1", A.blocks)
        asked(fleet, 5.0)
        assert fleet.landing.unheard("r1") == ((0, 0.0) if told else (1, 0.0))
    served(fleet, request("a2"))  # it is there: there is nothing to tell
    assert fleet.landing.unheard("r1") == (0, 0.0)
    assert not fleet.landing


def test_nothing_is_counted_of_who_does_not_tell_or_has_left() -> None:
    fleet = telling()
    served(fleet)
    asked(fleet, 0.0)
    asked(fleet, 5.0)
    fleet.untold("r1")
    assert fleet.landing.unheard("r1") is None
    fleet.stored("r1", OTHER.blocks)
    assert fleet.landing.unheard("r1") is None
    served(fleet, request("b"))
    fleet.left("r1")
    fleet.joined("r1")
    asked(fleet, 9.0)
    asked(fleet, 19.0)
    assert fleet.landing.unheard("r1") is None


def test_of_larger_blocks_only_whole_ones_are_told() -> None:
    """Ten blocks of 16 tokens are five of 32, and nine are four: the ninth is never told by itself."""
    fleet = telling()
    fleet.reported("r1", Report(block_tokens=32), 0.0)
    odd = request("odd", 0, own=9)
    served(fleet, odd)
    fleet.stored("r1", odd.blocks[:8])
    assert not fleet.landing
    assert fleet.landing.unheard("r1") == (0, 0.0)
    served(fleet, request("short", 0, own=1))  # less than one of its blocks
    assert not fleet.landing


def test_it_stays_expected_when_its_request_has_ended_with_a_block_beyond() -> None:
    """A prompt of whole blocks fills a last one that nobody reads: ending told of that one, not of the others."""
    fleet = telling()
    fleet.sent(A, "r1")
    fleet.first_token(A)
    fleet.generated(A, 40)
    fleet.done(A, request("beyond", 0, own=1).blocks)
    assert asked(fleet, 0.0) == 10
    assert asked(fleet, 5.0) == 0


def small(*, told: Request) -> Fleet:
    """Room for 20 blocks, and a prompt served and told of."""
    fleet = fleet_of("r1", "r2", capacity_blocks=20)
    fleet.stored("r1", OTHER.blocks[:1])
    served(fleet, told)
    fleet.stored("r1", told.blocks)
    return fleet


def test_what_makes_room_for_a_prompt_is_gone_before_the_replica_says_so() -> None:
    older = request("older", 0, own=16)
    fleet = small(told=older)
    assert asked(fleet, 0.0, older) == 16
    fleet.sent(A, "r1")
    assert asked(fleet, 0.0, older) == 16  # nobody knows when its turn comes
    fleet.first_token(A)
    assert asked(fleet, 0.0, older) == 10
    fleet.generated(A, 28)
    fleet.done(A)
    assert asked(fleet, 0.1, older) == 8  # its answer fills two blocks more
    fleet.removed("r1", older.blocks[9:])
    fleet.stored("r1", A.blocks)
    assert asked(fleet, 0.2, older) == 9  # now it has said so


def test_what_others_brought_there_is_not_taken_for_given_up() -> None:
    older = request("older", 0, own=16)
    fleet = small(told=older)
    others = request("others", 0, own=16)
    fleet.stored("r1", others.blocks)  # another router sent it
    fleet.sent(A, "r1")
    fleet.first_token(A)
    assert asked(fleet, 0.0, others) == 16
    assert asked(fleet, 0.0, older) == 10


def test_no_more_makes_room_than_what_comes() -> None:
    """The router's memory may be far too small: what a replica told of counts but for the blocks on their way."""
    older = request("older", 0, own=16)
    fleet = small(told=older)
    for number in range(2):
        other = request(f"other{number}", 0, own=10)
        served(fleet, other)
        fleet.stored("r1", other.blocks)
    few = request("few", 0, own=3)
    served(fleet, few)
    assert asked(fleet, 0.0, older) == 13
