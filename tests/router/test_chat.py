"""The engine's rewriting of chats, rule by rule; the whole of it is compared with recordings in `test_prompts.py`."""

from typing import Any

import pytest

from router.chat import MARK, Conversation, NotText, conversation, part_text, without_billing_header, without_mark

USER = {"role": "user", "content": "Hi"}
A, B = ({"type": "text", "text": text} for text in "ab")
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def rewritten(*messages: Any, takes_parts: bool = False, knows_developer: bool = False, **more: Any) -> Conversation:
    body = {"messages": list(messages), **more}
    return conversation(body, takes_parts=takes_parts, knows_developer=knows_developer)


def content(given: Any, role: str = "user", **flags: Any) -> Any:
    return rewritten({"role": role, "content": given}, **flags).messages[0]["content"]


@pytest.mark.parametrize(
    ("given", "string", "parts"),
    [
        ("a", "a", [A]),
        ("", "", [{"type": "text", "text": ""}]),
        (None, "", []),
        ([], "", []),
        ([A, B], "a\nb", [A, B]),
        ([{"type": "text", "text": ""}, B], "b", [{"type": "text", "text": ""}, B]),
        (["a", B], "a\nb", ["a", B]),
        ([{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}], "a\nb", [A, B]),
    ],
)
def test_content_is_what_the_template_takes(given: Any, string: str, parts: list[Any]) -> None:
    assert content(given) == string
    assert content(given, takes_parts=True) == parts


def test_a_mark_stands_where_text_ends() -> None:
    asked = rewritten({"role": "user", "content": [A, IMAGE, B, IMAGE]}, {"role": "user", "content": [IMAGE, A]})
    assert asked.beyond_text == "a part of type image_url is not text"
    assert [message["content"] for message in asked.messages] == [MARK, "a"]
    asked = rewritten({"role": "user", "content": [A, IMAGE, B, IMAGE]}, takes_parts=True)
    assert asked.messages[0]["content"] == [A, {"type": "text", "text": MARK}, B]


def test_kinds_of_parts_are_named_without_quoting_the_body() -> None:
    assert "unknown" in rewritten({"role": "user", "content": [{"type": "a secret"}]}).beyond_text
    assert "unknown" in rewritten({"role": "user", "content": [7]}).beyond_text


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"a":1,"b":1.0}', {"a": 1, "b": 1.0}),
        ('{"a": 18446744073709551617}', {"a": 18446744073709551617}),
        ('{"a": ', {}),
        ("[1]", {}),
        ('"x"', {}),
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("[" * 100_000, {}),
    ],
)
def test_arguments_of_tool_calls_are_parsed(given: Any, arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    message = rewritten({"role": "assistant", "content": None, "tool_calls": [call]}).messages[0]
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    assert call["function"]["arguments"] is given  # type: ignore[index]


def test_infinite_numbers_in_arguments_are_read_as_the_engine_reads_them() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": Infinity}'}}
    message = rewritten({"role": "assistant", "tool_calls": [call]}).messages[0]
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": float("inf")}


def test_members_are_kept_by_role() -> None:
    asked = rewritten(
        {"role": "assistant", "content": "a", "reasoning": "r", "tool_calls": [], "refusal": None, "tool_call_id": "c"},
        {"role": "assistant", "content": "a", "reasoning_content": "r"},
        {"role": "tool", "content": "a", "tool_call_id": "c"},
        {"role": "user", "content": "a", "name": "n", "reasoning": "r", "tool_calls": [{}]},
    )
    assert asked.messages == (
        {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"},
        {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"},
        {"role": "tool", "content": "a", "tool_call_id": "c"},
        {"role": "user", "content": "a", "name": "n"},
    )


def test_developers_are_merged_into_one_system_message() -> None:
    given = [{"role": "system", "content": "s"}, USER, {"role": "developer", "content": "d"}, USER]
    assert rewritten(*given).messages == ({"role": "system", "content": "s\n\nd"}, USER, USER)
    known = rewritten(*given, knows_developer=True)
    assert [message["role"] for message in known.messages] == ["system", "user", "developer", "user"]
    two = [{"role": "system", "content": "s"}, {"role": "system", "content": "t"}, USER]
    assert rewritten(*two).messages == tuple(two)  # nothing is merged without a developer


def test_developers_are_merged_as_parts_too() -> None:
    merged = rewritten({"role": "developer", "content": ["a", B]}, USER, takes_parts=True).messages[0]
    assert merged == {"role": "system", "content": [{"type": "text", "text": "a\nb"}]}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x-anthropic-billing-header: cch=1\nBe brief.\nAlways.", "Be brief.\nAlways."),
        ("x-anthropic-billing-header: cch=1", ""),
        ("Be brief.\nx-anthropic-billing-header", "Be brief.\nx-anthropic-billing-header"),
    ],
)
def test_the_billing_header_is_dropped_from_system_texts(text: str, left: str) -> None:
    assert without_billing_header(text) == left
    assert content(text, "system") == left
    assert content(text, "user") == text


def test_tools_are_written_in_the_engines_order() -> None:
    parameters = {"required": ["a"], "type": "object"}
    tool = {"x": 1, "function": {"strict": True, "parameters": parameters, "name": "f"}, "type": "function"}
    (made,) = rewritten(USER, tools=[tool]).tools or ()
    assert list(made) == ["type", "function", "x"]
    assert list(made["function"].items()) == [
        ("name", "f"),
        ("description", None),
        ("parameters", parameters),
        ("strict", True),
    ]
    assert list(made["function"]["parameters"]) == ["required", "type"]
    assert rewritten(USER, tools=[]).tools is None
    assert rewritten(USER, tools="x").tools is None


@pytest.mark.parametrize(
    ("more", "variables"),
    [
        ({}, {}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"chat_template_kwargs": {"a": 1}, "documents": []}, {"a": 1, "documents": []}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
        ({"chat_template_kwargs": [], "reasoning_effort": 3, "documents": {}}, {}),
    ],
)
def test_variables_reach_the_template(more: Any, variables: Any) -> None:
    assert rewritten(USER, **more).variables == variables


def test_a_continued_message_is_marked_and_found_again() -> None:
    answer = {"role": "assistant", "content": "Sure, "}
    asked = rewritten(USER, answer, continue_final_message=True)
    assert asked.continues
    assert not asked.add_generation_prompt
    assert asked.messages[-1]["content"] == f"Sure, {MARK} "
    assert answer["content"] == "Sure, "
    kept, trimmed = f"<a>Sure, {MARK} </a>", f"<a>Sure, {MARK}</a>"
    assert without_mark(kept, continues=True)[0] == "<a>Sure, "
    assert without_mark(trimmed, continues=True)[0] == "<a>Sure,"
    parts = rewritten({"role": "user", "content": [A, B]}, takes_parts=True, continue_final_message=True)
    assert parts.messages[0]["content"] == [A, {"type": "text", "text": f"b{MARK} "}]


def test_a_mark_that_the_template_dropped_is_told() -> None:
    with pytest.raises(NotText):
        without_mark("<a></a>", continues=True)
    with pytest.raises(NotText, match="holds no text"):
        rewritten({"role": "assistant", "content": []}, takes_parts=True, continue_final_message=True)
    assert without_mark(f"a {MARK} b {MARK}", continues=False) == ("a ", f" b {MARK}")


@pytest.mark.parametrize(
    "messages", [None, [], "x", {}, [None], ["x"], [{}], [{"role": 1}], [{"role": "u", "content": 1}]]
)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(NotText):
        conversation({"messages": messages}, takes_parts=False, knows_developer=False)


def test_only_text_parts_have_a_text() -> None:
    assert part_text({"text": "a"}) == "a"
    assert part_text({"type": "thinking", "thinking": "a"}) == "a"
    assert part_text(IMAGE) is None
    assert part_text({"type": "text", "text": 3}) is None
    assert part_text("a") is None
