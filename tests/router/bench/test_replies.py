"""One reply: its first token wherever the bytes are cut, its usage, and what was wrong with it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.bench.replies import Reply

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
TOKEN = {"choices": [{"index": 0, "delta": {"content": "x"}}]}
HELD_BACK = {"choices": [{"index": 0, "delta": {"content": ""}}]}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}},
}


def events(*told, done=True):
    out = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in told)
    return out + (b"data: [DONE]\n\n" if done else b"")


def fed(data, *, streamed=True):
    reply = Reply(streamed=streamed)
    reply.fed(data)
    return reply


@given(st.lists(st.integers(1, 60), max_size=30))
def test_the_first_token_is_seen_however_the_bytes_are_cut(sizes):
    stream = events(ROLE, TOKEN, TOKEN, USAGE)
    end = stream.index(b"\n", stream.index(b'"x"')) + 1  # the line of the first token is whole from here
    reply = Reply(streamed=True)
    at = 0
    for size in [*sizes, len(stream)]:
        reply.fed(stream[at : at + size])
        at = min(len(stream), at + size)
        assert reply.begun == (at >= end)
    assert reply.fault == ""
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens, reply.usage.output_tokens) == (40, 32, 3)


@pytest.mark.parametrize(
    "event",
    [
        TOKEN,
        HELD_BACK,
        {"choices": [{"index": 0, "text": ""}]},
        {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]},
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]},
        {"type": "content_block_delta", "delta": {"text": "x"}},
        {"type": "response.output_text.delta", "delta": "x"},
    ],
)
def test_a_token_is_one_in_every_dialect(event):
    assert fed(events(event)).begun


@pytest.mark.parametrize(
    "event", [ROLE, USAGE, {"type": "message_start"}, {"choices": None}, [1], "x", {"choices": [3]}]
)
def test_what_brings_no_token_is_none(event):
    assert not fed(events(event)).begun


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (events(ROLE, TOKEN), ""),
        (events(ROLE, TOKEN, done=False), "cut"),
        (events(ROLE), "no token"),
        (b"", "cut"),
        (events(TOKEN, {"error": {"message": "died", "code": 500}}), "error event"),
        (events({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "abort"}]}), "aborted"),
        (
            events({"type": "content_block_delta"}, done=False) + b'event: message_stop\ndata: {"type":"message_stop"}',
            "",
        ),
        (events({"type": "response.output_text.delta"}, done=False) + b"event: response.completed\ndata: {}\n\n", ""),
    ],
)
def test_a_fault_is_named(stream, fault):
    assert fed(stream).fault == fault


def test_a_reply_that_is_not_streamed_has_usage_and_no_first_token():
    reply = fed(json.dumps({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 4}}).encode(), streamed=False)
    assert (reply.begun, reply.fault, reply.usage.prompt_tokens, reply.usage.cached_tokens) == (False, "", 4, None)
