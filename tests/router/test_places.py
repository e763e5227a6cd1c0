"""What is left of a trace answers for other contents."""

import pytest

from router.places import Guard, Place

CONTENTS = ["You help.", "  <think>a</think> Hello  "]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place(0), "You help."),
        (Place(1, (("strip", ()),)), "<think>a</think> Hello"),
        (Place(1, (("split", (-1, "</think>")), ("lstrip", ("\n ",)))), "Hello  "),
        (Place(0, (("replace", ("help", "ask")), ("upper", ()))), "YOU ASK."),
    ],
)
def test_a_place_does_with_a_content_what_the_template_did(place, expected):
    assert place.of(CONTENTS) == expected


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        (Guard(Place(1), "__contains__", ("</think>",), True), True),
        (Guard(Place(0), "__contains__", ("</think>",), True), False),
        (Guard(Place(1, (("strip", ()),)), "startswith", ("<think>",), True), True),
        (Guard(Place(0), "", (), True), True),
        (Guard(Place(0), "", (), False), False),
    ],
)
def test_a_guard_holds_when_the_question_has_the_same_answer(guard, holds):
    assert guard.holds(CONTENTS) is holds


def test_equal_guards_are_one():
    assert len({Guard(Place(0), "", (), True), Guard(Place(0), "", (), True), Guard(Place(1), "", (), True)}) == 2
