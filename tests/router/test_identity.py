"""Who a request belongs to."""

import pytest

from router.errors import ConfigError
from router.http.messages import Call
from router.identity import Identity, Sessions


def _call(*headers: tuple[bytes, bytes]) -> Call:
    return Call.of(b"POST", b"/v1/chat/completions", list(headers), b"", b"h", "127.0.0.1")


def test_the_first_source_that_has_a_value_wins() -> None:
    identity = Identity(["header:x-user-id", "body:user", "body:metadata.user_id"])

    assert identity.of(_call((b"X-User-Id", b"ann")), {"user": "bob"}) == "ann"
    assert identity.of(_call(), {"user": "bob", "metadata": {"user_id": "cy"}}) == "bob"
    assert identity.of(_call(), {"metadata": {"user_id": "cy"}}) == "cy"
    assert identity.of(_call(), {"user": 7, "metadata": "x"}) is None
    assert identity.of(_call(), None) is None


def test_a_body_source_before_a_header_wins() -> None:
    identity = Identity(["body:user", "header:x-user-id"])

    assert identity.of(_call((b"x-user-id", b"ann")), {"user": "bob"}) == "bob"


def test_a_long_identity_is_cut() -> None:
    assert Identity(["body:user"]).of(_call(), {"user": "u" * 10_000}) == "u" * 256


def test_a_source_of_no_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither header:NAME nor body:MEMBER"):
        Identity(["cookie:id"])


def test_a_growing_prompt_stays_in_its_session() -> None:
    sessions = Sessions()
    first, second, third = (bytes([n]) * 16 for n in (1, 2, 3))

    started = sessions.of([first])

    assert started is not None
    assert sessions.of([first, second]) == started
    assert sessions.of([first, second, third]) == started
    assert sessions.of([bytes([4]) * 16]) != started
    assert sessions.of([]) is None


def test_a_dry_run_remembers_nothing() -> None:
    sessions = Sessions()
    first, second = bytes(16), bytes([1]) * 16

    assert sessions.known([first]) == first.hex()
    assert sessions.known([]) is None
    assert repr(sessions) == "<Sessions 0 of 100000>"
    assert sessions.of([first]) == sessions.known([first, second])


def test_sessions_are_bounded() -> None:
    sessions = Sessions(capacity=10)
    for number in range(100):
        sessions.of([number.to_bytes(16, "little")])

    assert repr(sessions) == "<Sessions 10 of 10>"
