"""What is read in a body, and what is refused."""

import pytest

from router.errors import BadRequest, NotServed
from router.http.messages import Call
from router.openai import CHAT, COMPLETIONS, CONTROL, Ask, asked, batched, reads_cache, samples
from router.prompt_bodies import NOT_RUN, POOLING


def _call(path: str, body: bytes) -> Call:
    return Call.of(b"POST", path.encode(), [], body, b"h", "127.0.0.1")


def test_model_stream_and_length_are_read() -> None:
    body = b'{"model": "m", "stream": true, "max_tokens": 7, "x": 1}'

    assert asked(_call(CHAT + "?a=1", body)) == Ask(
        CHAT, {"model": "m", "stream": True, "max_tokens": 7, "x": 1}, "m", 7, True
    )


@pytest.mark.parametrize(
    ("member", "salt"), [(b"", ""), (b', "cache_salt": "blue"', "blue"), (b', "cache_salt": 7', "")]
)
def test_a_clients_own_salt_is_read(member: bytes, salt: str) -> None:
    assert asked(_call(CHAT, b'{"model": "m"' + member + b"}")).salt == salt


@pytest.mark.parametrize(
    ("body", "replies"),
    [
        ({}, 1),
        ({"n": 1}, 1),
        ({"n": 2}, 2),
        ({"n": 0}, 1),
        ({"n": "2"}, 1),
        ({"n": True}, 1),
        ({"sampling_params": {"n": 3}}, 3),
        ({"sampling_params": {}}, 1),
    ],
)
def test_how_many_replies_are_asked_for(body: dict[str, object], replies: int) -> None:
    assert samples(body) == replies


def test_the_last_of_duplicate_members_counts_as_for_the_engine() -> None:
    assert asked(_call(CHAT, b'{"model": "a", "model": "b"}')).model == "b"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b"", "the body is empty", id="empty"),
        pytest.param(b"{bad", "not valid JSON", id="malformed"),
        pytest.param(b'{"temperature": NaN}', "not valid JSON", id="NaN"),
        pytest.param(b'\xef\xbb\xbf{"model": "m"}', "not valid JSON", id="BOM"),
        pytest.param(b'{"prompt": "\\ud800"}', "not valid JSON", id="lone surrogate"),
        pytest.param(b"[1]", "the body is a JSON array; send an object", id="array"),
        pytest.param(b"null", "the body is a JSON null; send an object", id="null"),
    ],
)
def test_a_body_that_is_no_object_is_refused_without_repeating_it(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        asked(_call(CHAT, body))

    assert said in str(caught.value)
    assert "temperature" not in str(caught.value)


@pytest.mark.parametrize("body", [b'{"model": 5}', b'{"model": ""}', b'{"max_tokens": "7"}', b'{"max_tokens": true}'])
def test_wrong_types_are_left_to_the_engine(body: bytes) -> None:
    ask = asked(_call(CHAT, body))

    assert (ask.model, ask.max_output_tokens) == (None, None)


def test_a_form_tells_its_model() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'

    assert asked(_call("/v1/audio/transcriptions", body)).model == "whisper"
    assert asked(_call("/v1/audio/transcriptions", b"--b--")).model is None


def test_unknown_paths_are_read_if_they_can_be() -> None:
    assert asked(_call("/v1/new", b' {"model": "m"}')).model == "m"
    assert asked(_call("/v1/new", b"\x00binary")) == Ask("/v1/new", None, None, None, False)


@pytest.mark.parametrize("path", sorted(CONTROL))
def test_paths_that_steer_an_engine_are_not_passed_on(path: str) -> None:
    with pytest.raises(NotServed, match=r"not passed on"):
        asked(_call(path, b"{}"))


@pytest.mark.parametrize(
    ("route", "body", "reads"),
    [
        pytest.param(CHAT, {}, True, id="chat"),
        pytest.param(CHAT, {"prompt_logprobs": None}, True, id="null is not asked for"),
        pytest.param(CHAT, {"prompt_logprobs": 0}, False, id="0 alternatives are asked for"),
        pytest.param(CHAT, {"logprobs": True, "top_logprobs": 5}, True, id="of the answer alone"),
        pytest.param(CHAT, {"echo": True, "logprobs": True}, True, id="a chat's echo is another"),
        pytest.param(COMPLETIONS, {"echo": True}, True, id="echo"),
        pytest.param(COMPLETIONS, {"logprobs": 1}, True, id="logprobs"),
        pytest.param(COMPLETIONS, {"echo": True, "logprobs": 0}, False, id="echo with logprobs"),
        pytest.param(COMPLETIONS, {"echo": False, "logprobs": 1}, True, id="no echo"),
        pytest.param(COMPLETIONS, {"prompt_logprobs": 1}, False, id="of the prompt"),
        pytest.param("/inference/v1/generate", {"sampling_params": {"prompt_logprobs": 1}}, False, id="generate"),
        pytest.param("/inference/v1/generate", {"sampling_params": {}}, True, id="generate without"),
        pytest.param("/v1/audio/transcriptions", None, False, id="a body nobody reads"),
    ],
)
def test_who_reads_the_prefix_cache(route: str, body: dict[str, object] | None, reads: bool) -> None:
    assert reads_cache(route, body) is reads


@pytest.mark.parametrize("route", sorted(POOLING | NOT_RUN))
def test_pooling_and_counting_read_no_cache(route: str) -> None:
    assert reads_cache(route, {}) is False


def test_a_batch_is_its_longest_prompt_and_the_tokens_of_all() -> None:
    batch = batched(COMPLETIONS, {"model": "m", "prompt": [[1, 2], [3, 4, 5], [6, 7, 8]]})

    assert batch is not None
    assert batch.body == {"model": "m", "prompt": [3, 4, 5]}
    assert batch.tokens(3) == 8


def test_a_batch_of_texts_counts_the_others_by_the_density_of_the_longest() -> None:
    batch = batched(COMPLETIONS, {"prompt": ["abc", "a" * 30, "abcdef"]})

    assert batch is not None
    assert batch.body["prompt"] == "a" * 30
    assert batch.tokens(10) == 13


def test_a_batch_may_mix_texts_and_ids() -> None:
    batch = batched(COMPLETIONS, {"prompt": ["abcd" * 2, [1, 2, 3]]})

    assert batch is not None
    assert (batch.body["prompt"], batch.tokens(3)) == ([1, 2, 3], 5)


@pytest.mark.parametrize(
    "prompt", ["text", ["one"], [1, 2, 3], [[1, 2]], [], ["a", 1], ["a", ""], ["a", []], [[1], [True]], None, {"a": 1}]
)
def test_what_is_no_batch_is_left_as_it_is(prompt: object) -> None:
    assert batched(COMPLETIONS, {"prompt": prompt}) is None
    assert batched(CHAT, {"prompt": ["a", "b"]}) is None
