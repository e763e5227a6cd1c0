"""Which paths take a cache salt, as vLLM 0.32 serves them, and what becomes of a call's body for it.

The one rule: with tenants on, a path that runs the engine either takes the salt or is refused; an operator may list it
as shared, in so many words. Not here: the edit of bytes (`splice`), and whose salt (`salts`).
"""

from collections.abc import Callable, Collection

from router.errors import BadRequest, NotSalted
from router.http.messages import Call
from router.openai import JSON_ROUTES, Ask
from router.prompt_bodies import NOT_RUN
from router.splice import safe, salted, unsalted

SALTLESS = NOT_RUN
"""Paths that take no salt and need none: nothing runs on the engine."""

SALTED = (JSON_ROUTES - NOT_RUN - {"/v2/embed"}) | {
    "/inference/v1/generate",
    "/v1/chat/completions/batch",
    "/generative_scoring",
    "/v1/systemone",
}
"""Paths whose body gets the salt: the request classes of vLLM 0.32 that have a `cache_salt`. That of `/v1/messages` has
one since PR 49498; whether replicas read it is asked (`salt_proof`)."""


class SaltedPaths:
    """Gives calls their salt, path by path."""

    def __init__(self, shared: Collection[str] = (), check: Callable[[str], None] = lambda _: None) -> None:
        """`shared`: paths served without a salt, as the operator says; `check` raises where no salt is read."""
        self._shared = frozenset(shared)
        self._check = check

    def __repr__(self) -> str:
        return f"<SaltedPaths, {len(self._shared)} shared>"

    def salted(self, call: Call, ask: Ask, salt: str) -> Call:
        """The call as a replica may see it. Raises `NotSalted`, or `BadRequest` for a body that can't be made safe."""
        route, body = ask.route, ask.body
        if route in SALTED:
            if route not in self._shared:
                self._check(route)
            if body is None:
                raise BadRequest("the body is not a JSON object; send one, so that it can be given its cache salt")
            safe(body)
            return call.with_body(salted(call.body, body, salt))
        if route not in SALTLESS and route not in self._shared:
            raise NotSalted(
                f"{route[:200]} takes no cache salt, so tenants could not be kept apart there; an operator may allow it"
                " by tenants.shared_paths"
            )
        if body is None:
            return call
        safe(body)
        return call.with_body(unsalted(call.body, body))
