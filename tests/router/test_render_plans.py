"""A plan gives the template's own text, to the letter, or nothing."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chat import conversation
from router.readers import TINY
from router.render_plans import RenderPlans
from router.templates import ChatTemplate, TemplateError, special_tokens
from router.tokenizers import load

THINKING = """
{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- set text = message.content %}
    {%- if ns.looking and message.role == "user" and not(text.startswith('<r>') and text.endswith('</r>')) %}
        {%- set ns.looking = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- set thought = '' %}
    {%- if message.role == "assistant" and '</t>' in content %}
        {%- set thought = content.split('</t>')[0].rstrip('\n').split('<t>')[-1].lstrip('\n') %}
        {%- set content = content.split('</t>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last and (loop.last or thought) %}
        {{- '<s>' + message.role + '\n<t>\n' + thought.strip('\n') + '\n</t>\n\n' + content.lstrip('\n') }}
    {%- else %}
        {{- '<s>' + message.role + '\n' + content }}
    {%- endif %}
    {{- '<e>\n' }}
{%- endfor %}"""
TRIMMING = (
    "{% for m in messages %}{% set text = '[' + m['role'] + ']' + m['content'] | trim + '/' %}"
    "{% if loop.first %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
)
MACRO = (
    "{% macro shown(m) %}<{{ m.role ~ ':' ~ m.content }}>{% endmacro %}"
    "{% for m in messages %}{{ shown(m) }}{% set x %}{{ m.content.upper() }}!{% endset %}{{ x }}{% endfor %}"
)
ASKING = (
    "{% for m in messages %}{% if m.content %}{{ m.content if m.content is string else 'no' }}{% endif %}"
    "{% if m.content == 'a' %}same{% elif m.content in ['b', 'ab'] %}listed{% endif %}"
    "{{ (m.content or 'empty').replace('a', 'A') }}{% endfor %}"
)
DATED = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
FOLLOWED = {"thinking": THINKING, "trimming": TRIMMING, "macro": MACRO, "asking": ASKING, "dated": DATED}

NOT_FOLLOWED = {
    "length": "{{ messages[0].content | length }}",
    "a character": "{{ messages[0].content[0:1] }}",
    "json": "{{ messages[0].content | tojson }}",
    "json of a message": "{{ messages[0] | tojson }}",
    "a loop": "{% for letter in messages[0].content %}{{ letter }}.{% endfor %}",
    "joined text asked": "{{ 'yes' if 'xa' in 'x' + messages[0].content else 'no' }}",
    "joined text trimmed": "{{ (' ' + messages[0].content) | trim }}",
    "a printed block asked": "{% set x %} {{ messages[0].content }}{% endset %}{{ x | trim }}{{ 'a' in x }}",
    "a macro's text asked": "{% macro f(m) %}{{ m.content }}{% endmacro %}{{ f(messages[0]).startswith('a') }}",
    "a tilde's text asked": "{{ (messages[0].content ~ 'b') == 'ab' }}",
    "a key": "{{ {'a': 1}[messages[0].content] }}",
    "an argument": "{{ 'abc'.startswith(messages[0].content) }}",
    "an argument in a list": "{{ '-'.join([messages[0].content, 'x']) }}",
    "formatting": "{{ '%s' % messages[0].content }}{{ '{}'.format(messages[0].content) }}",
    "repeating": "{{ messages[0].content * 2 }}",
    "order": "{{ messages[0].content < 'b' }}",
    "a search among attributes": "{{ messages | selectattr('content', 'equalto', 'a') | list | length }}",
    "a middle part": "{{ messages[0].content.split('a')[1] }}",
    "all parts": "{{ messages[0].content.split('a') | join('+') }}",
    "words": "{{ messages[0].content | wordcount }}",
    "another method": "{{ messages[0].content.partition('a')[0] }}",
    "finding": "{{ messages[0].content.find('a') }}",
}

WORDS = ["a", "b", " ", "\n", "<t>", "</t>", "<r>", "</r>", "x-anthropic-billing-header: 1\n", "é", ""]
CONTENTS = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENTS}),
    min_size=1,
    max_size=4,
)


def at_noon(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<bos>"}, now=lambda: datetime(2026, 11, 30, 12, tzinfo=UTC))


def in_full(template: ChatTemplate, body: dict[str, Any]) -> str | None:
    """What the template makes of a body without any plan; None when it refuses."""
    asked = conversation(body, takes_parts=template.takes_parts, knows_developer=template.knows_developer)
    try:
        return template.render(
            asked.messages, asked.tools, asked.variables, add_generation_prompt=asked.add_generation_prompt
        )
    except TemplateError:
        return None


@pytest.mark.parametrize("name", [*FOLLOWED, *NOT_FOLLOWED])
@settings(max_examples=40)
@given(chats=st.lists(MESSAGES, min_size=1, max_size=6))
def test_a_planned_text_is_the_rendered_text(name: str, chats: list[list[dict[str, str]]]) -> None:
    template = at_noon({**FOLLOWED, **NOT_FOLLOWED}[name])
    plans = RenderPlans(template, "<s>")
    for messages in [*chats, *chats]:
        body = {"messages": messages}
        text, cut = plans.text(body), plans.cut_text(body)
        assert text is None or text == in_full(template, body)
        assert (text is None and cut is None) or b"".join(cut or []).decode("utf-8", "surrogatepass") == text


def test_a_text_is_cut_where_the_template_itself_puts_the_token() -> None:
    messages = [{"role": "user", "content": "a<s>b"}, {"role": "assistant", "content": "c"}]
    plans = RenderPlans(at_noon(THINKING), "<s>")
    cut = plans.cut_text({"messages": messages})
    assert cut == [b"<s>user\na<s>b<e>\n", b"<s>assistant\n<t>\n\n</t>\n\nc<e>\n"]


@pytest.mark.parametrize("name", FOLLOWED)
def test_the_second_chat_of_a_shape_needs_no_template(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = at_noon(FOLLOWED[name])
    plans = RenderPlans(template)
    first = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "one"}]}
    second = {"messages": [{"role": "user", "content": "again "}, {"role": "assistant", "content": "two\n"}]}
    expected = in_full(template, second)
    assert plans.text(first) == in_full(template, first)
    monkeypatch.delattr(template, "_template")
    assert plans.text(second) == expected


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_cannot_be_followed_is_left_to_the_template(name: str) -> None:
    plans = RenderPlans(at_noon(NOT_FOLLOWED[name]))
    for content in ("a", "b", " ab"):
        assert plans.text({"messages": [{"role": "user", "content": content}]}) is None


def test_a_plan_holds_only_while_its_guards_do() -> None:
    template = at_noon(THINKING)
    plans = RenderPlans(template)
    for content in ("plain", "<t>\nthought\n</t>\n\nsaid", "other", "<t>deep</t>said", "</t>"):
        body = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]}
        assert plans.text(body) == in_full(template, body)
    assert repr(plans) == "<RenderPlans 2 plans>"


def test_what_shapes_a_chat_beside_its_messages_is_part_of_the_shape() -> None:
    template = at_noon("{{ tools | tojson }}{{ mode }}{{ add_generation_prompt }}{{ messages[0].content }}")
    plans = RenderPlans(template)
    said = {"messages": [{"role": "user", "content": "hi"}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    bodies: list[dict[str, Any]] = [
        said,
        {**said, "tools": [tool]},
        {**said, "tools": [{**tool, "function": {"name": "g"}}]},
        {**said, "chat_template_kwargs": {"mode": 1}},
        {**said, "chat_template_kwargs": {"mode": "1"}},
        {**said, "add_generation_prompt": False},
        {**said, "temperature": 0.5},
    ]
    for body in [*bodies, *bodies]:
        assert plans.text(body) == in_full(template, body)
    assert repr(plans) == "<RenderPlans 6 plans>"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "user", "content": "hi", "name": "n"}]},
        {"messages": [{"role": "tool", "content": "hi"}]},
        {"messages": [{"role": "developer", "content": "hi"}]},
        {"messages": [{"role": ["user"], "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}], "chat_template": "x"},
        {"messages": [{"role": "user", "content": "hi"}], "continue_final_message": True},
        {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"n": 2**70}},
    ],
)
def test_other_chats_are_left_to_the_template(body: dict[str, Any]) -> None:
    assert RenderPlans(at_noon("{{ messages }}")).text(body) is None


def test_the_date_moves_on() -> None:
    dates = [datetime(2026, 11, 30, tzinfo=UTC)]
    template = ChatTemplate(DATED, now=lambda: dates[-1])
    plans = RenderPlans(template)
    body = {"messages": [{"role": "user", "content": "!"}]}
    assert plans.text(body) == plans.text(body) == "30 Nov 2026!"
    dates.append(datetime(2026, 12, 1, tzinfo=UTC))
    assert plans.text(body) == plans.text(body) == "01 Dec 2026!"


def test_shapes_are_bounded_and_a_hopeless_one_is_given_up() -> None:
    plans = RenderPlans(at_noon("{% for m in messages %}{{ m.content }}{% endfor %}"))
    for count in range(1, 400):
        assert plans.text({"messages": [{"role": "user", "content": "a"}] * count}) == "a" * count
    assert repr(plans) == "<RenderPlans 256 plans>"
    refusing = RenderPlans(at_noon("{{ raise_exception('no') }}"))
    for _ in range(20):
        assert refusing.text({"messages": [{"role": "user", "content": "a"}]}) is None


def test_the_shipped_template_is_followed() -> None:
    _, config, source = load(TINY)
    assert source is not None
    template = ChatTemplate(source, special_tokens(config))
    body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]}
    assert RenderPlans(template).text(body) == in_full(template, body)
