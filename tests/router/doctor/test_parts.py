import pytest

from router.doctor.parts import asked, canonical

IMAGE = {"type": "image_url", "image_url": {"url": "data:x"}}


def paths(body):
    return [(part.path, part.role, part.text) for part in asked("/r", body).parts]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "p"}, [("prompt", "", "p")]),
        ({"prompt": ["p", "q"]}, [("prompt[0]", "", "p")]),
        ({"prompt": [1, 2]}, [("prompt", "", "1 2")]),
        ({"input": "i", "instructions": "s"}, [("instructions", "system", "s"), ("input", "", "i")]),
        (
            {"messages": [{"role": "user", "content": ["a", {"type": "text", "text": "b"}]}]},
            [("messages[0].content[0]", "user", "a"), ("messages[0].content[1].text", "user", "b")],
        ),
        (
            {"system": "s", "messages": [{"role": "user", "content": "u"}]},
            [("system", "system", "s"), ("messages[0].content", "user", "u")],
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            [("messages[0].tool_calls", "assistant", '[{"id":"1"}]')],
        ),
        ({"tools": [{"b": 1, "a": 2}], "prompt": "p"}, [("tools[0]", "tools", '{"b":1,"a":2}'), ("prompt", "", "p")]),
        ({"messages": [{"role": "user", "content": ""}]}, []),
    ],
)
def test_parts_of_a_body(body, expected):
    assert paths(body) == expected


def test_images_are_opaque():
    (part,) = asked("/r", {"messages": [{"role": "user", "content": [IMAGE]}]}).parts
    assert part.opaque
    assert part.path == "messages[0].content[0]"
    assert "data" not in part.text


def test_roots_stand_before_all_text():
    ask = asked("/r", {"model": "m", "cache_salt": "s", "chat_template_kwargs": {"a": 1}, "prompt": "p"})
    assert ask.roots == (("model", "m"), ("cache_salt", "s"), ("chat_template_kwargs", '{"a":1}'))
    assert ask.chars == 1


def test_canonical_orders_members():
    assert canonical('{"b":1,"a":{"d":1,"c":2}}') == '{"a":{"c":2,"d":1},"b":1}'
    assert canonical("no json {") == "no json {"
