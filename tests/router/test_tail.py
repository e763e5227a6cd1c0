"""The kept end of a reply, and what had been said before it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.tail import STREAM_TAIL_BYTES, TAIL_BYTES, Tail
from router.usage import Usage, clients_fault, error_event, usage

USAGE = b'"usage": {"input_tokens": 40, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 32}}'
ERROR = b'data: {"error": {"code": 400, "message": "%b"}}\n\n'


class Listener:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def heard(self, piece: bytes) -> None:
        self.pieces.append(piece)


def tail_of(body: bytes, size: int, most_bytes: int = STREAM_TAIL_BYTES, ear: Listener | None = None) -> Tail:
    tail = Tail()
    for start in range(0, len(body), size):
        tail.add(body[start : start + size], ear, most_bytes)
    return tail


@given(st.integers(1, 9000), st.integers(0, 60_000), st.sampled_from([STREAM_TAIL_BYTES, TAIL_BYTES]))
def test_what_is_heard_and_what_is_kept_make_the_body(size, length, most_bytes):
    body = bytes(i * 7 % 251 for i in range(length))
    ear = Listener()
    tail = tail_of(body, size, most_bytes, ear)
    assert b"".join(ear.pieces) + tail.whole() == body
    assert len(tail.whole()) <= 2 * max(most_bytes, 2048) + size


@pytest.mark.parametrize("size", [1, 7, 300, 2048, 5000, 64 * 1024])
@pytest.mark.parametrize("behind", [0, 1000, 6000, 200_000])
def test_usage_is_known_however_much_comes_behind_it(size, behind):
    """vLLM 0.32 ends `response.completed` with `output_messages`, which may be longer than all that is kept."""
    body = (
        b'data: {"response": {"id": "r", ' + b"x" * 4000 + USAGE + b', "output_messages": ["' + b"y" * behind + b'"]}}'
    )
    tail = tail_of(body, size)
    assert usage(tail.said() + tail.whole()) == Usage(40, 32, 7)


@pytest.mark.parametrize("size", [1, 7, 300, 2048, 5000])
def test_the_last_usage_counts(size):
    running = b'data: {"usage": {"prompt_tokens": 9, "completion_tokens": %d}, "text": "' + b"z" * 3000 + b'"}\n\n'
    body = b"".join(running.replace(b"%d", b"%d" % count) for count in range(1, 6))
    tail = tail_of(body, size)
    assert usage(tail.said() + tail.whole()) == Usage(9, None, 5)


@pytest.mark.parametrize("size", [1, 7, 300, 2048, 5000])
def test_an_error_longer_than_the_kept_end_is_known(size):
    tail = tail_of(ERROR % (b"long " * 4000), size)
    said = tail.said() + tail.whole()
    assert error_event(said)
    assert clients_fault(said)
    healthy = tail_of(b"data: {}\n\n" * 4000, size)
    assert not error_event(healthy.said() + healthy.whole())


def test_another_body_begins_with_nothing():
    tail = tail_of(USAGE + ERROR + b"y" * 9000, 2048)
    assert tail.said()
    tail.begun()
    assert (tail.said(), tail.whole()) == (b"", b"")
