"""Prompts of one template have one name, whatever is put into it; and nothing grows without bound."""

import orjson
import pytest

from router.hits import Routes
from router.prompt_heads import MOST, Heads, head
from tests.router.doctor.traffic import broken, chats
from tests.router.test_hits import REQUEST, call


def named(bodies, heads=None) -> list[str | None]:
    heads = heads or Heads()
    return [heads.of(orjson.dumps(body)) for body in bodies]


def test_a_template_has_a_name_from_its_third_prompt_on():
    first, second, *rest = named(chats())
    assert (first, second) == (None, None)
    assert len(set(rest)) == 1
    assert rest[0].startswith("template-")


@pytest.mark.parametrize("name", ["clock", "uuid", "user name", "clock in the middle", "tool order", "salt"])
def test_what_changes_in_it_makes_no_other_one(name):
    assert len(set(named(broken(name))[2:])) == 1


def test_the_name_is_that_of_the_template_and_not_of_the_order():
    plain = named(chats())[-1]
    heads = Heads()
    named(chats(2), heads)
    assert named(chats(), heads)[-1] == plain != named(chats(2), heads)[-1]
    assert named(broken("clock"))[-1] == plain


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text, n: {"prompt": f"{text}\nQuestion: {n}"},
        lambda text, n: {"instructions": text, "input": f"question {n}"},
        lambda text, n: {"system": text, "messages": [{"role": "user", "content": f"question {n}"}]},
        lambda text, n: {"system": [{"type": "text", "text": text}], "messages": []},
        lambda text, n: {
            "messages": [{"role": "user", "content": f"question {n}"}, {"role": "system", "content": text}]
        },
    ],
    ids=range(5),
)
def test_where_the_head_stands(wrap):
    text = "\n".join(f"Rule {number} is a long rule that all of them share." for number in range(20))
    assert len(set(named([wrap(text, number) for number in range(9)])[2:])) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"messages":7}',
        b'{"messages":[]}',
        b'{"messages":[{"role":7}]}',
        b"\xff",
        b"{}",
        b'{"x":%b%b}' % (b"[" * 1010, b"]" * 1010),
    ],
)
def test_what_holds_no_prompt_has_no_head(body):
    assert head(body) == []
    assert Heads().of(body) is None


def test_templates_and_candidates_are_bounded():
    heads = Heads()
    for number in range(MOST + 50):
        text = "\n".join(f"rule {line} of service {number}, and of no other" for line in range(5))
        named([{"prompt": f"{text}\n{time}"} for time in range(4)], heads)
    named([{"prompt": f"a prompt of its own {number} " * 20} for number in range(3000)], heads)
    assert len(heads._names) == MOST
    assert len(heads._candidates) <= 1000
    assert len(heads._lines) <= 64_000
    assert len(heads._known) <= 64 * MOST


def test_many_single_prompts_take_no_template_its_name():
    heads = Heads()
    named([{"prompt": f"a prompt of its own {number} " * 20} for number in range(3000)], heads)
    assert named(chats(), heads)[-1] is not None


def test_no_text_is_kept():
    heads = Heads()
    named(chats(), heads)
    assert "Rule 1" not in repr(vars(heads))


def test_it_is_a_route():
    routes = Routes("template")
    found = [routes.of(REQUEST, call().with_body(orjson.dumps(body))) for body in chats()]
    assert found[0] == "other"
    assert found[-1].startswith("template-")
