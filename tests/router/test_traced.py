"""Whatever could look at a content unnoticed raises."""

import pytest

from router.places import Guard, Place
from router.traced import Joined, Trace, Traced, Untraceable


def traced(content: str = " ab") -> Traced:
    return Traced.at(Place(0), Trace([content]))


def test_text_joined_with_a_place_remembers_both() -> None:
    joined = "<" + traced() + ">" + "!"
    assert isinstance(joined, Joined)
    assert joined.pieces == ("<", Place(0), ">", "!")
    assert str(joined) is joined


def test_questions_are_answered_for_the_content_at_hand_and_noted() -> None:
    content = traced()
    trace = content.trace
    assert content
    assert "ab" in content
    assert content != "ab"
    assert not content.startswith("ab")
    assert content.called("endswith", ("b",))
    assert trace.guards == [
        Guard(Place(0), "", (), True),
        Guard(Place(0), "__contains__", ("ab",), True),
        Guard(Place(0), "__ne__", ("ab",), True),
        Guard(Place(0), "startswith", ("ab",), False),
        Guard(Place(0), "endswith", ("b",), True),
    ]
    assert all(guard.holds([" ab"]) for guard in trace.guards)
    assert not all(guard.holds(["ab"]) for guard in trace.guards)


def test_changes_apply_one_after_the_other() -> None:
    place = Place(1, (("strip", ()), ("split", (-1, "</t>")), ("upper", ())))
    assert place.of(["", "  a</t>b </t> c "]) == " C"


def test_no_method_of_a_string_can_be_called_unnoticed() -> None:
    """Templates get at methods another way; rewriting before the template calls `startswith` alone."""
    noted = {"startswith"}
    for value, open_ones in ((traced(), noted), ("x" + traced(), set())):
        for name in (name for name in dir(str) if not name.startswith("_") and name not in open_ones):
            with pytest.raises(Untraceable):
                getattr(value, name)()


@pytest.mark.parametrize(
    "look",
    [
        len,
        iter,
        hash,
        lambda value: value[0],
        lambda value: value < "b",
        lambda value: value % (),
        lambda value: value * 2,
        lambda value: 2 * value,
        lambda value: f"{value}",
        lambda value: value in {"a": 1},
        lambda value: value + 1,
    ],
)
def test_no_look_goes_unnoticed(look: object) -> None:
    assert callable(look)
    for value in (traced(), "x" + traced()):
        with pytest.raises(Untraceable):
            look(value)
    joined = "x" + traced()
    for asked in (bool, lambda value: value == "a", lambda value: "a" in value):
        with pytest.raises(Untraceable):
            asked(joined)
