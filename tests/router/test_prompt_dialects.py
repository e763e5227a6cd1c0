"""Messages and Responses bodies become the chat the engine makes of them; what was not compared carries a doubt."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from router.chat import NotText
from router.prompt_dialects import as_chat
from router.readers import local_reader

MESSAGES, RESPONSES, CHAT = "/v1/messages", "/v1/responses", "/v1/chat/completions"
TEXT = {"type": "text", "text": "Hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "data": "…"}}
RECORDING = Path(__file__).parents[1] / "recordings" / "prompts_over_http_qwen3.json.gz"


def test_every_route_counts_as_the_engine_did() -> None:
    folder = Path(os.environ.get("ROUTER_TEST_TOKENIZERS", "")) / "tokenizer-qwen3" / "models"
    if not (folder / "tokenizer.json").exists():
        pytest.skip("ROUTER_TEST_TOKENIZERS names no folder that holds tokenizer-qwen3/models")
    reader = local_reader(folder, block_tokens=16)
    cases = json.loads(gzip.decompress(RECORDING.read_bytes()))
    assert {case["path"] for case in cases} >= {MESSAGES, "/v1/messages/count_tokens", RESPONSES, CHAT, "/tokenize"}
    for case in cases:
        ids = reader.token_ids(case["path"].removesuffix("/render"), case["body"])
        if case["prompt_token_ids"] is not None:
            assert ids == case["prompt_token_ids"], case["name"]
        elif case["name"] != "completions_batch":  # its usage sums all prompts; it is placed by the first
            assert len(ids) == case["prompt_tokens"], case["name"]


def test_a_chat_stays_as_it_is() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert as_chat(CHAT, body) == (body, "")


def test_plain_messages_are_exact() -> None:
    body = {"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    chat, doubt = as_chat(MESSAGES, body)
    assert not doubt
    assert chat == {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}


def turned(*messages: Any, **more: Any) -> Any:
    chat, doubt = as_chat(MESSAGES, {"messages": list(messages), **more})
    assert doubt
    return chat


@pytest.mark.parametrize(
    ("message", "made"),
    [
        ({"role": "user", "content": [TEXT]}, [{"role": "user", "content": "Hi"}]),
        ({"role": "user", "content": [TEXT, TEXT]}, [{"role": "user", "content": [TEXT, TEXT]}]),
        ({"role": "user", "content": [TEXT, IMAGE]}, [{"role": "user", "content": [TEXT, IMAGE]}]),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, TEXT]},
            [{"role": "assistant", "reasoning": "hm", "content": "Hi"}],
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
                }
            ],
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]},
            [{"role": "tool", "tool_call_id": "c", "content": "ok"}],
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT, TEXT]}, TEXT]},
            [{"role": "tool", "tool_call_id": "c", "content": "Hi\nHi"}, {"role": "user", "content": "Hi"}],
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}]},
            [{"role": "tool", "tool_call_id": "c", "content": ""}, {"role": "user", "content": [IMAGE]}],
        ),
    ],
)
def test_parts_become_messages(message: Any, made: list[Any]) -> None:
    assert turned(message)["messages"] == made


def test_system_texts_are_joined_without_the_billing_header() -> None:
    header = {"type": "text", "text": "x-anthropic-billing-header: cch=1"}
    late = {"role": "system", "content": " And kind."}
    chat = turned({"role": "user", "content": "Hi"}, late, system=[header, {"type": "text", "text": "Be brief."}])
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief. And kind."},
        {"role": "user", "content": "Hi"},
    ]


def test_tools_and_effort_are_passed_on() -> None:
    tool = {"name": "f", "description": "F", "input_schema": {"type": "object"}}
    chat = turned({"role": "user", "content": "Hi"}, tools=[tool], output_config={"effort": "low"})
    function = {"name": "f", "description": "F", "parameters": {"type": "object"}}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["reasoning_effort"] == "low"


def test_a_plain_response_is_exact() -> None:
    chat, doubt = as_chat(RESPONSES, {"instructions": "Be brief.", "input": "Hi"})
    assert not doubt
    assert chat["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_items_of_a_response_become_messages() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    chat, doubt = as_chat(RESPONSES, {"input": items})
    assert doubt
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant", "tool"]
    assert chat["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (RESPONSES, {"input": "Hi", "previous_response_id": "resp_1"}),
        (RESPONSES, {"input": [{"type": "reasoning"}]}),
        (RESPONSES, {"input": 3}),
        (RESPONSES, {}),
        (MESSAGES, {}),
        (MESSAGES, {"messages": ["Hi"]}),
    ],
)
def test_what_only_the_engine_knows_is_refused(route: str, body: Any) -> None:
    with pytest.raises(NotText):
        as_chat(route, body)
