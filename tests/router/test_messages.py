"""What may be passed on, and where a request wants to go."""

import pytest

from router.http.messages import Call, origin_form, without_hop_by_hop


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
    assert Call(b"POST", target, [], b"", b"", "").path == path
