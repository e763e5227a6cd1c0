"""Every way the router itself can fail, drawn as one tree.

    RouterError
      UsageError            exit code 2: a command line or configuration that can't be used
        ConfigError         a setting that is unknown, ill-typed or contradicts another
      RequestError          answered to the client as OpenAI-shaped JSON; the class knows the status
        BadRequest 400 · Unauthorized 401 · NotSalted 403 · NotAllowed 403 · OriginNotAllowed 403
        UnknownModel 404 · NotServed 404 · ClientTooSlow 408 · BodyTooLarge 413 · RateLimited 429 · HeadTooLarge 431
        QueueFull 429 · NotImplementedHere 501 · ReplicaUnreachable 502 · NoReplicaAvailable 503 · WaitedTooLong 503
        ReplicaTimedOut 504

A replica's own 4xx or 5xx is not an error here: it is relayed as it came. Messages name the thing and the remedy and
never hold prompt text or credentials.
"""

from http import HTTPStatus
from math import ceil

import orjson


class RouterError(Exception):
    """Something the router can't do."""


class UsageError(RouterError):
    """A command line or a configuration that can't be used; the process ends with exit code 2."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting that is unknown, has the wrong type, or contradicts another."""


class RequestError(RouterError):
    """A request the router answers itself. Subclasses fix `status`, `kind` and `code`."""

    status = 500
    kind = "internal_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def reason(self) -> str:
        return HTTPStatus(self.status).phrase

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The head of the answer, without framing."""
        headers = [(b"Content-Type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"Retry-After", b"%d" % self.retry_after_s))
        return headers

    @property
    def body(self) -> bytes:
        """OpenAI's error object (https://platform.openai.com/docs/guides/error-codes)."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code or self.status}
        return orjson.dumps({"error": error})


class BadRequest(RequestError):  # noqa: N818 -- named after the HTTP status it is
    """The client's bytes can't be understood."""

    status = 400
    kind = "invalid_request_error"


class Unauthorized(RequestError):  # noqa: N818 -- named after the HTTP status it is
    """Tenants are on, and the request brings no credential that is known."""

    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers, (b"WWW-Authenticate", b"Bearer")]


class NotSalted(RequestError):  # noqa: N818 -- named after what it says
    """Tenants are on, and the path takes no cache salt, so that they could not be kept apart there."""

    status = 403
    kind = "invalid_request_error"
    code = "path_not_salted"


class NotAllowed(RequestError):  # noqa: N818 -- named after what it says
    """A change on the admin port by somebody who has not shown that he may, or a page elsewhere that calls there."""

    status = 403
    kind = "invalid_request_error"
    code = "not_allowed"


class OriginNotAllowed(RequestError):  # noqa: N818 -- named after what it says
    """A browser asks for a web page that `cors.allow_origins` does not name."""

    status = 403
    kind = "invalid_request_error"
    code = "origin_not_allowed"


class UnknownModel(RequestError):  # noqa: N818 -- named after what it says
    """No replica serves the model the client asked for."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class NotServed(RequestError):  # noqa: N818 -- named after what it says
    """A path the router never passes on, such as an engine's control endpoints."""

    status = 404
    kind = "invalid_request_error"
    code = "path_not_served"


class ClientTooSlow(RequestError):  # noqa: N818 -- named after what happened
    """The client did not finish a head, or fell silent in a body."""

    status = 408
    kind = "invalid_request_error"
    code = "client_too_slow"

    @classmethod
    def over(cls, phase: str, after_s: float) -> "ClientTooSlow":
        setting = "client_head_s" if phase == "head" else "client_body_idle_s"
        return cls(f"the request's {phase} did not go on within timeouts.{setting} = {after_s:g} s")


class BodyTooLarge(RequestError):  # noqa: N818 -- named after the HTTP status it is
    """The body is larger than `limits.body_bytes`."""

    status = 413
    kind = "invalid_request_error"
    code = "body_too_large"

    @classmethod
    def over(cls, limit_bytes: int) -> "BodyTooLarge":
        return cls(f"the body exceeds limits.body_bytes = {limit_bytes}; raise it or send less")


class RateLimited(RequestError):  # noqa: N818 -- named after what it says
    """A tenant has used up what it may use for now."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"
    limits: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, what: str, limit: int, remaining: int, wait_s: float) -> "RateLimited":
        """`what` is used up; there is enough again in `wait_s`. Header names as OpenAI's."""
        per = "" if what == "requests in flight" else " a minute"
        error = cls(f"the limit of {limit} {what}{per} is reached", retry_after_s=max(1, ceil(wait_s)))
        if per:
            rows = (("limit", str(limit)), ("remaining", str(remaining)), ("reset", f"{max(0.001, wait_s):.3f}s"))
            error.limits = tuple((f"x-ratelimit-{row}-{what}".encode(), value.encode()) for row, value in rows)
        return error

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers, *self.limits]


class QueueFull(RequestError):  # noqa: N818 -- named after what happened
    """Every replica has as much as it may, and so has the queue; or the request could not wait long enough."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"


class WaitedTooLong(RequestError):  # noqa: N818 -- named after what happened
    """The request's time in the queue is over."""

    status = 503
    kind = "server_error"
    code = "queue_timeout"


class HeadTooLarge(RequestError):  # noqa: N818 -- named after the HTTP status it is
    """Request line and headers together are larger than `limits.header_bytes`."""

    status = 431
    kind = "invalid_request_error"
    code = "headers_too_large"

    @classmethod
    def over(cls, limit_bytes: int) -> "HeadTooLarge":
        return cls(f"request line and headers exceed limits.header_bytes = {limit_bytes}")


class NotImplementedHere(RequestError):  # noqa: N818 -- named after the HTTP status it is
    """A part of HTTP the router does not speak, or a dry run of a policy that can not be copied."""

    status = 501
    kind = "invalid_request_error"
    code = "not_implemented"


class ReplicaUnreachable(RequestError):  # noqa: N818 -- named after what happened
    """Every replica that was tried refused, broke off, or spoke no HTTP before the first byte."""

    status = 502
    kind = "server_error"
    code = "replica_unreachable"


class NoReplicaAvailable(RequestError):  # noqa: N818 -- named after what happened
    """No replica that serves the model is healthy at the moment."""

    status = 503
    kind = "server_error"
    code = "no_replica_available"


class ReplicaTimedOut(RequestError):  # noqa: N818 -- named after what happened
    """The replica did not start to answer in time."""

    status = 504
    kind = "server_error"
    code = "replica_timed_out"
