"""What is read in a body, and what is refused."""

import pytest

from router.errors import BadRequest, NotServed
from router.http.messages import Call
from router.openai import CHAT, CONTROL, Ask, asked


def _call(path: str, body: bytes) -> Call:
    return Call(b"POST", path.encode(), [], body, b"h", "127.0.0.1")


def test_model_stream_and_length_are_read() -> None:
    body = b'{"model": "m", "stream": true, "max_tokens": 7, "x": 1}'

    assert asked(_call(CHAT + "?a=1", body)) == Ask(
        CHAT, {"model": "m", "stream": True, "max_tokens": 7, "x": 1}, "m", 7, True
    )


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
