import pytest

from router.doctor.causes import cause_of
from router.doctor.divergence import gaps
from router.doctor.edits import END, PART, Edit, advice, edits_of
from router.doctor.parts import asked
from tests.router.doctor.traffic import BREAKERS, CHAT, broken


def system(text):
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "q"}]}


def test_a_span_moves_behind_the_prompt_or_behind_its_part():
    edit = Edit("timestamp", "messages[0].content", "Now: ", "\nRules")
    body = system("Now: 10:01\nRules")
    assert edit.done(body) == {
        "messages": [{"role": "system", "content": "Now: \nRules"}, {"role": "user", "content": "q\n10:01"}]
    }
    assert Edit("timestamp", edit.path, edit.before, edit.after, PART).done(body) == system("Now: \nRules\n10:01")
    assert body == system("Now: 10:01\nRules")


@pytest.mark.parametrize(
    "body",
    [
        system("Other text"),
        {"messages": []},
        {"messages": 3},
        {"prompt": "Now: x"},
        {"messages": [{"content": None}]},
        {},
    ],
)
def test_bodies_without_the_place_stay(body):
    edit = Edit("timestamp", "messages[0].content", "Now: ", "\nRules")
    assert edit.done(body) is body


def test_parts_and_prompts():
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "id 7 of"}]}]}
    edited = Edit("counter", "messages[0].content[0].text", "id ", " of").done(body)
    assert edited["messages"][0]["content"] == [{"type": "text", "text": "id  of"}, {"type": "text", "text": "7"}]
    assert Edit("counter", "prompt", "id ", " of").done({"prompt": "id 7 of"}) == {"prompt": "id  of\n7"}


@pytest.mark.parametrize("name", ["tool order", "key order", "salt", "white space", "image"])
def test_orders_and_salts_become_equal(name):
    one, other = broken(name)[:2]
    ask, later = asked(CHAT, one), asked(CHAT, other)
    gap = gaps(ask, later)[0]
    cause = cause_of(gap)
    assert cause.kind == BREAKERS[name][0]
    (edit,) = edits_of(gap, cause)
    after = gaps(asked(CHAT, edit.done(one)), asked(CHAT, edit.done(other)))
    assert not [gap for gap in after if cause_of(gap) and cause_of(gap).kind == cause.kind]


def test_advice_names_the_place():
    assert advice("timestamp", "messages[0].content", END).startswith("move it to the end of the prompt")
    assert "messages[0].content" in advice("personal", "messages[0].content", PART)
    assert "tools[1]" in advice("timestamp", "tools[1]", END)
    assert "salt" in advice("salt", "cache_salt", END)
