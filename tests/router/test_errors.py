"""Errors of the router's own, as clients read them."""

import orjson
import pytest

from router import errors


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BadRequest("m"), 400, 400),
        (errors.UnknownModel("m"), 404, "model_not_found"),
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
