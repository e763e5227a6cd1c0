"""What may be passed on, and where a request wants to go."""

import pytest

from router.errors import BodyTooLarge
from router.http.heads import request_head, without_hop_by_hop
from router.http.messages import Call, origin_form, without_empty_lines


def test_headers_named_by_any_connection_header_are_dropped() -> None:
    headers = [
        (b"Connection", b"close, X-One"),
        (b"X-One", b"1"),
        (b"connection", b" x-TWO ,"),
        (b"x-two", b"2"),
        (b"X-Three", b"3"),
        (b"X-Three", b"4"),
    ]
    assert without_hop_by_hop(headers) == [(b"X-Three", b"3"), (b"X-Three", b"4")]


@pytest.mark.parametrize("name", [b"TE", b"Keep-Alive", b"Trailer", b"Proxy-Authorization", b"Transfer-Encoding"])
def test_headers_of_one_connection_are_dropped_unnamed(name: bytes) -> None:
    assert without_hop_by_hop([(name, b"x"), (b"Accept", b"y")]) == [(b"Accept", b"y")]


@pytest.mark.parametrize(
    ("target", "origin"),
    [
        (b"/v1/models?a=http://b/c", b"/v1/models?a=http://b/c"),
        (b"http://host:80/v1/models?a=1", b"/v1/models?a=1"),
        (b"HTTPS://host/sleep", b"/sleep"),
        (b"http://host", b"/"),
        (b"http://host?a=/b", b"/?a=/b"),
        (b"*", b"*"),
    ],
)
def test_a_whole_url_becomes_path_and_query(target: bytes, origin: bytes) -> None:
    assert origin_form(target) == origin


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/models?x=%2F", "/v1/models"),
        (b"/%73leep", "/sleep"),
        (b"/v1%2Fload_lora_adapter", "/v1/load_lora_adapter"),
        (b"/%", "/%"),
    ],
)
def test_the_path_is_what_the_engine_will_read(target: bytes, path: str) -> None:
    assert Call.of(b"POST", target, [], b"", b"", "").path == path


SIZED = [(b"Content-Length", b"9")]
CHUNKED = [(b"Transfer-Encoding", b"chunked")]


@pytest.mark.parametrize("lines", [b"", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize(
    ("data", "headers", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}", SIZED, b"{}", id="sized"),
        pytest.param(b"x}", SIZED, b'{"a":"x}', id="the end of a body in another read"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nab\r\n", SIZED, b"ab\r\n", id="a body that ends with a line end"),
        pytest.param(b"5\r\nab\r\n\n\r\n0\r\n\r\n", CHUNKED, b"ab\r\n\n", id="chunked"),
        pytest.param(b"0\r\nX: y\r\n\r\n", CHUNKED, b"ab", id="trailers"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", [], b"", id="no body"),
    ],
)
def test_empty_lines_behind_a_message_are_no_part_of_it(data, headers, body, lines) -> None:
    assert without_empty_lines(data + lines, headers, body) == data


def test_what_is_no_empty_line_stays() -> None:
    assert without_empty_lines(b"{}x\r\n", SIZED, b"{}") == b"{}x\r\n"


def test_what_connection_names_counts_for_nobody() -> None:
    headers = [(b"HOST", b"r"), (b"Connection", b"close, X-One"), (b"x-one", b"1"), (b"Content-Length", b"2")]
    kept, named = request_head([*headers, (b"X-Two", b"2"), (b"x-two", b"3")], 10)
    assert kept == [(b"X-Two", b"2"), (b"x-two", b"3")]
    assert named == {b"host": b"r", b"connection": b"close, X-One", b"content-length": b"2", b"x-two": b"2"}


def test_a_head_that_announces_too_much_is_refused() -> None:
    with pytest.raises(BodyTooLarge):
        request_head([(b"content-length", b"11")], 10)
