"""Errors of the router's own, as clients read them."""

import orjson
import pytest

from router import errors


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BadRequest("m"), 400, 400),
        (errors.UnknownModel("m"), 404, "model_not_found"),
        (errors.NotSalted("m"), 403, "path_not_salted"),
        (errors.RateLimited("m"), 429, "rate_limit_exceeded"),
        (errors.NotServed("m"), 404, "path_not_served"),
        (errors.BodyTooLarge("m"), 413, "body_too_large"),
        (errors.HeadTooLarge("m"), 431, "headers_too_large"),
        (errors.NotImplementedHere("m"), 501, "not_implemented"),
        (errors.ReplicaUnreachable("m"), 502, "replica_unreachable"),
        (errors.NoReplicaAvailable("m"), 503, "no_replica_available"),
        (errors.ReplicaTimedOut("m"), 504, "replica_timed_out"),
    ],
)
def test_each_class_knows_its_status(error: errors.RequestError, status: int, code: object) -> None:
    told = orjson.loads(error.body)["error"]

    assert error.status == status
    assert (told["message"], told["code"], told["param"]) == ("m", code, None)
    assert error.headers == [(b"Content-Type", b"application/json")]


def test_retry_after_is_a_header() -> None:
    error = errors.NoReplicaAvailable("m", retry_after_s=2)

    assert (b"Retry-After", b"2") in error.headers
    assert error.reason == "Service Unavailable"


def test_a_bad_configuration_ends_with_code_2() -> None:
    assert errors.ConfigError("m").exit_code == 2


def test_an_unknown_key_says_how_to_bring_one() -> None:
    error = errors.Unauthorized("m")
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert (b"WWW-Authenticate", b"Bearer") in error.headers


def test_a_used_up_limit_says_when_to_come_again() -> None:
    error = errors.RateLimited.of("tokens", 600, 12, 2.25)
    assert dict(error.headers) == {
        b"Content-Type": b"application/json",
        b"Retry-After": b"3",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"12",
        b"x-ratelimit-reset-tokens": b"2.250s",
    }
    assert "600 tokens a minute" in str(error)
