"""Templates render as `transformers` renders them, in the sandbox, whatever short ways the sandbox takes."""

from datetime import UTC, datetime
from typing import Any

import jinja2
import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.templates import ChatTemplate, TemplateError, special_tokens

USER = {"role": "user", "content": " Hi <b>\n"}


def rendered(source: str, messages: Any = (USER,), **more: Any) -> str:
    return ChatTemplate(source).render(messages, more.pop("tools", None), more)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% for m in messages %}{% break %}x{% endfor %}y", "y"),
        ("{% for n in range(3) %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% endfor %}", "02"),
        ("a{% generation %}{{ messages[0].role }}{% endgeneration %}b", "auserb"),
        ("{{ {'ü': 1, 'a': [1.0, none, '<']} | tojson }}", '{"ü": 1, "a": [1.0, null, "<"]}'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{{ messages[0].content }}|{{ messages[0]['content'].strip() }}", " Hi <b>\n|Hi <b>"),
        ("{{ messages[0].content.split('i')[-1].lstrip() }}", "<b>\n"),
        ("{{ messages[0].missing is defined }}{{ messages[0].missing }}", "False"),
        ("{{ messages[0].items() | list | length }}", "2"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        ("{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.cycle('a', 'b') }}{% endfor %}", "0Truea"),
        ("{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = 2 %}{% endfor %}{{ ns.n }}", "2"),
        ("{% macro f(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ f('a', b='c') }}", "ac"),
        ("{{ tools }}{{ documents }}{{ add_generation_prompt }}", "NoneNoneTrue"),
        ("{{ '%s' | format('a') }}{{ '{}'.format('b') }}", "ab"),
    ],
)
def test_what_templates_use_works(source: str, text: str) -> None:
    assert rendered(source) == text


def test_special_tokens_and_variables_reach_the_template() -> None:
    template = ChatTemplate("{{ bos_token }}{{ enable_thinking }}{{ messages | length }}", {"bos_token": "<s>"})
    assert template.render([USER], None, {"enable_thinking": False}) == "<s>False1"
    assert template.render([USER], None, {"messages": [], "enable_thinking": 1}) == "<s>11"


def test_the_clock_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 11, 30, tzinfo=UTC))
    assert template.render([USER]) == "30 Nov 2026"
    assert template.knows_the_date
    assert not ChatTemplate("x").knows_the_date


@pytest.mark.parametrize("source", ["{% if %}", "{{ a", "{% endfor %}", "{% unknown %}", "{{ a | no_such_filter }}"])
def test_a_template_that_cannot_be_compiled_says_so(source: str) -> None:
    with pytest.raises(TemplateError, match="can't be compiled"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate: ' + messages[0].content) }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ range(99999999) }}",
    ],
)
def test_refusals_and_escapes_are_template_errors_without_text(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(source)
    assert "Hi" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages[0].content.format_map.__self__ }}",
        "{% for m in messages %}{{ loop.__init__ }}{% endfor %}",
        "{{ messages[0].content.strip.__self__ }}",
        "{{ messages[0].__class__ }}",
    ],
)
def test_what_the_sandbox_hides_renders_to_nothing(source: str) -> None:
    assert rendered(source) == ""


def test_nesting_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TemplateError, match="nested too deeply"):
        rendered("{{ messages | tojson }}", [deep])


class Plain(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox without short ways."""


NAMES = [
    "role",
    "content",
    "items",
    "keys",
    "get",
    "strip",
    "upper",
    "format",
    "__class__",
    "missing",
    "first",
    "index",
]


@given(
    obj=st.one_of(st.text(), st.dictionaries(st.sampled_from(NAMES), st.text() | st.integers()), st.integers()),
    name=st.sampled_from(NAMES),
    call=st.booleans(),
)
def test_short_ways_give_what_the_long_way_gives(obj: Any, name: str, call: bool) -> None:
    source = "{% for m in [obj] %}{{ obj.NAME }}{{ loop.NAME is defined }}{% endfor %}".replace("NAME", name)
    if call:
        source = "{% set n = 'x' %}{{ obj.NAME() }}".replace("NAME", name)

    def outcome(render: Any) -> str:
        try:
            return str(render())
        except (TemplateError, jinja2.TemplateError, TypeError, ValueError):
            return "refused"

    ours = outcome(lambda: ChatTemplate(source).render([], None, {"obj": obj}))
    theirs = outcome(lambda: Plain(trim_blocks=True, lstrip_blocks=True).from_string(source).render(obj=obj))
    # A bound method's repr names its address.
    assert ours.partition(" at 0x")[0] == theirs.partition(" at 0x")[0]


def test_special_tokens_come_from_the_configuration() -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": None,
        "unk_token": {"id": 3},
        "add_bos_token": True,
        "model_max_length": 8,
    }
    assert special_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}
