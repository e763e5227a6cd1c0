import random

import pytest

from router.doctor.divergence import gaps
from router.doctor.parts import asked
from tests.router.doctor.traffic import prose

RULES = "\n".join(prose(random.Random(number), 12) for number in range(10))


def parted(one: dict, other: dict):
    return gaps(asked("/r", one), asked("/r", other))


def system(text: str, *more: str) -> dict:
    return {"messages": [{"role": "system", "content": text}, *({"role": "user", "content": one} for one in more)]}


def test_equal_and_growing_prompts_have_no_gap():
    assert parted(system(RULES), system(RULES)) == []
    assert parted(system(RULES, "a"), system(RULES, "a", "b")) == []
    assert parted(system(RULES, "a"), system(RULES, "b")) == []
    assert parted({"prompt": RULES[:300]}, {"prompt": RULES}) == []


def test_the_first_character_that_differs_and_what_follows():
    (gap,) = parted(system(f"now 10:01\n{RULES}", "q"), system(f"now 10:02\n{RULES}", "q"))
    assert (gap.path, gap.role, gap.message, gap.offset) == ("messages[0].content", "system", 0, 8)
    assert (gap.a_span, gap.b_span, gap.before) == ("10:01", "10:02", "now ")
    assert gap.after.startswith("\n")
    assert gap.run_chars == gap.later_chars == len(RULES) + 1


def test_offsets_count_from_the_member_in_a_later_part():
    (gap,) = parted(system("s", f"id a1\n{RULES}", "q"), system("s", f"id b22\n{RULES}", "q"))
    assert (gap.path, gap.offset, gap.chars_before) == ("messages[1].content", 3, 4)
    assert (gap.a_span, gap.b_span) == ("a1", "b22")


def test_text_that_came_is_a_gap_too():
    (gap,) = parted(system(RULES), system("at 10:00\n" + RULES))
    assert (gap.offset, gap.a_span) == (0, "")
    assert gap.b_span.startswith("at 10:00")


def test_members_before_all_text_lose_everything():
    (gap,) = parted({"model": "a", **system(RULES)}, {"model": "b", **system(RULES)})
    assert (gap.member, gap.path, gap.later_chars) == ("model", "model", len(RULES))


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_lists_part_at_their_first_item_that_differs(name):
    items = [{"id": number, "text": f"text of {number}"} for number in range(3)]
    (gap,) = parted({name: items, **system(RULES)}, {name: items[:1] + items[:0:-1], **system(RULES)})
    assert gap.path == f"{name}[1]"
    assert gap.later_chars == len(RULES)


def test_a_moved_paragraph_is_one_gap():
    lines = RULES.split("\n")
    (gap,) = parted(system("\n".join(lines)), system("\n".join([lines[5], *lines[:5], *lines[6:]])))
    assert gap.moved


def test_every_place_that_differs_is_told():
    first, second = parted(
        system(f"now 10:01\n{RULES}\nid: 77a1\n{RULES[::-1]}"), system(f"now 10:02\n{RULES}\nid: 99b2\n{RULES[::-1]}")
    )
    assert (first.b_span, second.b_span) == ("10:02", "99b2")
    assert first.later_chars == first.run_chars + second.run_chars
