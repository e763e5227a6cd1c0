"""Usage figures from the end of replies, as vLLM 0.32 writes them."""

import gzip
import json
from pathlib import Path

import pytest

from router.usage import UNKNOWN, Usage, aborted, error_event, usage

RECORDING = Path(__file__).parent.parent / "recordings" / "http_exchanges.json.gz"
EXCHANGES = json.loads(gzip.decompress(RECORDING.read_bytes()))


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param(
            b'"usage":{"prompt_tokens":87,"total_tokens":91,"completion_tokens":4,"prompt_tokens_details":'
            b'{"cached_tokens":64,"created_cache_tokens":0}},"prompt_logprobs":null}',
            Usage(87, 64, 4),
            id="chat",
        ),
        pytest.param(
            b'data: {"choices":[],"usage":{"prompt_tokens":87,"completion_tokens":4,"prompt_tokens_details":null}}\n\n'
            b"data: [DONE]\n\n",
            Usage(87, None, 4),
            id="no details: unknown, not 0",
        ),
        pytest.param(
            b'"usage":{"input_tokens":5,"output_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":64}',
            Usage(69, 64, 3),
            id="messages count cached tokens apart",
        ),
        pytest.param(
            b'"usage":{"input_tokens":5,"output_tokens":3,"cache_creation_input_tokens":64,"cache_read_input_tokens":0}',
            Usage(69, 0, 3),
            id="and those that were newly cached",
        ),
        pytest.param(
            b'"usage":{"input_tokens":69,"input_tokens_details":{"cached_tokens":64},"output_tokens":3}',
            Usage(69, 64, 3),
            id="responses count them in",
        ),
        pytest.param(b'data: {"choices":[]}\n\ndata: [DONE]\n\n', UNKNOWN, id="none told"),
        pytest.param(
            rb'"content":"say \"usage\":{\"prompt_tokens\":1}"}', UNKNOWN, id="the reply's own words are escaped"
        ),
        pytest.param(
            b'"usage":{"prompt_tokens":1}} ... "usage":{"prompt_tokens":2,"completion_tokens":9}',
            Usage(2, None, 9),
            id="the last one counts",
        ),
    ],
)
def test_usage_is_read_from_the_tail(tail: bytes, expected: Usage) -> None:
    assert usage(tail) == expected


def test_an_error_under_status_200_is_seen() -> None:
    assert error_event(b'data: {"error": {"message": "gone"}}\n\ndata: [DONE]\n\n')
    assert error_event(b'data: {"error":{"message":"gone"}}\n\n')
    assert not error_event(b'data: {"choices":[{"delta":{"content":"no error here"}}]}\n\n')


def test_an_aborted_answer_is_seen_in_either_spelling() -> None:
    assert aborted(b'"finish_reason":"abort"')
    assert aborted(b'"finish_reason": "abort"')
    assert not aborted(b'"finish_reason":"stop"')


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("messages", Usage(69, 0, 3)),
        ("messages_warm", Usage(69, 64, 3)),
        ("messages_stream", Usage(69, 64, 3)),
        ("chat_cold", Usage(87, 64, 4)),
        ("chat_warm", Usage(87, 64, 4)),
        ("chat_stream_usage", Usage(87, 64, 4)),
        ("chat_n2", Usage(87, 64, 4)),
        ("completions_batch", Usage(83, 64, 4)),
        ("responses", Usage(69, 64, 3)),
        ("responses_stream", Usage(69, 64, 3)),
        ("chat_stream", UNKNOWN),
    ],
)
def test_recorded_replies_tell_the_same_prompt_however_much_was_cached(name: str, expected: Usage) -> None:
    (answer,) = [exchange["answer"] for exchange in EXCHANGES if exchange["name"] == name]
    assert usage(answer.encode()) == expected
