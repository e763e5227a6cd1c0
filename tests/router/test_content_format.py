"""Which templates get parts: decided as the engine decides, on the shapes templates have in practice."""

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.content_format import takes_parts

LOOP = "{% for message in messages %}BODY{% endfor %}"
PARTS = "{% for part in CONTENT %}{{ part.text }}{% endfor %}"


def inside(body: str) -> str:
    return LOOP.replace("BODY", body)


def looping(content: str) -> str:
    return inside(PARTS.replace("CONTENT", content))


MACRO = "{% macro shown(items) %}{% for item in items %}{{ item }}{% endfor %}{% endmacro %}"


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (inside("{{ message.content }}"), False),
        (inside("{{ message['content'] | trim }}"), False),
        (looping("message.content"), True),
        (looping("message['content']"), True),
        (looping("message.content | selectattr('type')"), True),
        (looping("message['content'][1:]"), True),
        (looping("message.tool_calls"), False),
        (looping("other.content"), False),
        (
            "{% set rest = messages[1:] %}{% for m in rest %}" + PARTS.replace("CONTENT", "m.content") + "{% endfor %}",
            True,
        ),
        (
            "{% set a = messages %}{% set b = a %}{% for m in b %}"
            + PARTS.replace("CONTENT", "m.content")
            + "{% endfor %}",
            True,
        ),
        ("{% set a = a %}{% set b = a %}" + inside("{{ message.content }}"), False),
        (inside("{% set content = message.content %}" + PARTS.replace("CONTENT", "content")), True),
        (inside("{% set text = message.content %}" + PARTS.replace("CONTENT", "text")), False),
        (MACRO + inside("{{ shown(message.content) }}"), True),
        (MACRO + inside("{{ shown(items=message.content) }}"), True),
        (MACRO + inside("{{ shown(message.tool_calls) }}"), False),
        (MACRO + inside("{{ message.content }}"), False),
        (MACRO.replace("items", "content") + inside("{{ shown(message.tool_calls) }}"), False),
        ("", False),
    ],
)
def test_a_template_takes_parts_where_it_loops_over_content(source: str, parts: bool) -> None:
    assert takes_parts(ImmutableSandboxedEnvironment().parse(source)) is parts
