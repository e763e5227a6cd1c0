"""Tables of a comparison: bounds above policies, dashes for what is unknown."""

import io

import pytest
from rich.console import Console

from sim.compare import compare
from sim.report_table import DASH, number, percent, seconds, tables, whole
from sim.run import Setup
from tests.sim.loads import chats

SETUP = Setup(replicas=3, blocks=400)
POLICIES = ("round-robin", "prefix-aware")


def printed(comparison):
    out = io.StringIO()
    Console(file=out, width=160, highlight=False).print(tables(comparison))
    return out.getvalue()


def test_bounds_stand_above_policies():
    told = printed(compare(lambda _: chats(), POLICIES, SETUP))
    places = [told.index(word) for word in ("no cache", "one infinite cache", "oracle", *POLICIES)]
    assert places == sorted(places)
    for word in (
        "available",
        "predicted",
        "delivered",
        "TTFT mean",
        "TPOT",
        "E2E",
        "goodput",
        "imbalance",
        "duplicated",
    ):
        assert word in told


def test_lengths_only_have_no_cache_table():
    told = printed(compare(lambda _: chats(has_prefixes=False), POLICIES, SETUP))
    assert "what was cached" not in told
    assert "lengths only: no prefix analysis" in told
    assert "0.0%" not in told.split("good")[0]


def test_several_seeds_show_their_spread():
    assert "±" in printed(compare(lambda seed: chats(seed=seed), POLICIES, SETUP, seeds=(1, 2, 3)))
    assert "±" not in printed(compare(lambda seed: chats(seed=seed), POLICIES, SETUP))


def test_many_tenants_are_cut_to_the_largest():
    told = printed(compare(lambda _: chats(tenants=12), POLICIES, SETUP, with_bounds=False))
    assert "tenants (the 4 largest of 12)" in told


def test_names_are_no_markup():
    class Odd:
        def choose(self, request, replicas):
            return replicas[0].name

    told = printed(compare(lambda _: chats(), (f"{__name__}:_Odd",), SETUP, with_bounds=False))
    assert f"{__name__}:_Odd" in told


class _Odd:
    def choose(self, request, replicas):
        return replicas[0].name


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, DASH),
        (0, "0 s"),
        (0.00084, "840 µs"),
        (0.0123, "12.3 ms"),
        (0.123, "123 ms"),
        (1.234, "1.23 s"),
        (123.4, "123 s"),
    ],
)
def test_seconds_have_three_digits(value, shown):
    assert seconds(value) == shown


def test_numbers():
    assert (percent(0.1234), percent(None)) == ("12.3%", DASH)
    assert (whole(12345), whole(None)) == ("12,345", DASH)
    assert (number(1.234), number(1234.5), number(None)) == ("1.23", "1,234", DASH)
