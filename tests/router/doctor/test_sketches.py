from router.doctor.parts import asked
from router.doctor.sketches import leading, loss, sketch
from tests.router.doctor.traffic import CHAT, broken, chats


def sketches(bodies):
    shapes = {}
    return [sketch(asked(CHAT, body), shapes) for body in bodies]


def test_equal_prompts_have_equal_sketches():
    *_, one, other = sketches([chats()[0]] * 4)
    assert one == other
    assert leading([one], other) == len(one.keys)
    assert loss(one, other, 10_000) is None


def test_growing_prompts_lose_nothing():
    bodies = chats(users=1)
    one, other = sketches(bodies[:2])
    assert leading([one], other) == len(one.keys)
    assert loss(one, other, 10_000) is None


def test_the_longest_lead_counts():
    first, second, third = sketches([broken("clock")[0], chats()[0], chats(users=1)[1]])
    assert leading([first, second], third) == leading([second, first], third) > leading([first], third)


def test_no_more_is_lost_than_another_prompt_left():
    one, other = sketches(broken("clock")[:2])
    found = loss(one, other, 10_000)
    assert found.kind == "timestamp"
    assert found.chars > 1000
    assert loss(one, other, 300).chars == 300


def test_a_line_is_looked_at_once():
    shapes = {}
    body = broken("clock")[0]
    for _ in range(3):  # only so many lines are looked at each time
        sketch(asked(CHAT, body), shapes)
    before = dict(shapes)
    again = sketch(asked(CHAT, body), shapes)
    assert shapes == before
    assert [unit.kind for unit in again.units if unit.kind] == ["timestamp"]
