"""Usage figures from the end of replies, as vLLM 0.32 writes them."""

import pytest

from router.usage import UNKNOWN, Usage, aborted, error_event, usage


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
