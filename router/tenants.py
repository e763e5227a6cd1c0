"""Who is at the door: a request's credential becomes a tenant, with its salt and its limits.

The one rule: with tenants on nobody comes in unknown, and nothing that a client says but its credential decides which
tenant it is. Not here: keys and their file (`tenant_keys`), tokens (`jwt_tokens`), limits (`quotas`).
"""

from collections.abc import Callable
from typing import Final, Protocol

from router.errors import BadRequest, HeadTooLarge, Unauthorized
from router.http.messages import Call, Headers
from router.jwt_tokens import Tokens
from router.openai import Ask
from router.outcome import Outcome
from router.quotas import Quotas, Usage
from router.rereading import Current
from router.salted_paths import SaltedPaths
from router.salts import Salts
from router.tenant_keys import Register, Tenant
from router.tenant_metrics import TenantCounts

CREDENTIALS: Final = frozenset((b"authorization", b"x-api-key", b"api-key"))
"""Headers that carry a credential: of OpenAI's clients, of Anthropic's, of Azure's."""

LONGEST_BYTES: Final = 8 * 1024
_SCHEME: Final = b"bearer "


class Guest:
    """One request's tenant, for as long as the request is served."""

    __slots__ = ("name", "salt", "usage")

    def __init__(self, name: str, salt: str, usage: Usage | None) -> None:
        self.name = name
        self.salt = salt
        self.usage = usage

    def __enter__(self) -> "Guest":
        """Come in. Raises `RateLimited`."""
        if self.usage is not None:
            self.usage.enter()
        return self

    def __exit__(self, *_: object) -> None:
        if self.usage is not None:
            self.usage.leave()

    def asks(self, prompt_tokens: int) -> None:
        """The prompt has so many tokens. Raises `RateLimited`."""
        if self.usage is not None:
            self.usage.ask(prompt_tokens)


class Door(Protocol):
    """What the gateway asks about tenants, whether they are on or off."""

    def guest(self, call: Call) -> Guest:
        """Who calls. Raises `Unauthorized`, or `BadRequest` for two credentials."""
        ...

    def known(self, headers: Headers) -> None:
        """Told of a large body before it is read. Raises as `guest` does."""
        ...

    def named(self, name: str | None) -> Guest:
        """An operator's dry run for a tenant: nothing is counted. Raises `BadRequest` for a name that is nobody's."""
        ...

    def salted(self, call: Call, ask: Ask, guest: Guest) -> Call:
        """The call as a replica may see it. Raises `NotSalted` or `BadRequest`."""
        ...

    def answered(self, tenant: str, outcome: Outcome) -> None:
        """A request of this tenant has ended."""
        ...

    def label(self, tenant: str) -> str:
        """A tenant's label in metrics, of a closed set."""
        ...


class OpenDoor:
    """Tenants are off: everybody may come in, and nothing is changed."""

    def __init__(self) -> None:
        self._everybody = Guest("", "", None)

    def guest(self, call: Call) -> Guest:  # noqa: ARG002 -- whoever it is
        return self._everybody

    def known(self, headers: Headers) -> None:
        """Everybody is."""

    def named(self, name: str | None) -> Guest:  # noqa: ARG002 -- whoever it is
        return self._everybody

    def salted(self, call: Call, ask: Ask, guest: Guest) -> Call:  # noqa: ARG002 -- bytes go on as they came
        return call

    def answered(self, tenant: str, outcome: Outcome) -> None:
        """Nobody has a limit."""

    def label(self, tenant: str) -> str:
        """There is one tenant, without a name."""
        return tenant


class Tenants:
    """Tenants are on."""

    def __init__(
        self,
        *,
        register: Current[Register],
        salts: Current[Salts],
        tokens: Current[Tokens] | None,
        paths: SaltedPaths,
        quotas: Quotas,
        counts: TenantCounts,
        wall_clock: Callable[[], float],
    ) -> None:
        """`wall_clock` tells seconds since 1970, by which keys, tokens and old secrets end."""
        self._register = register
        self._salts = salts
        self._tokens = tokens
        self._paths = paths
        self._quotas = quotas
        self._counts = counts
        self._wall_clock = wall_clock

    def __repr__(self) -> str:
        return f"<Tenants {self._register.value!r}, {self._paths!r}>"

    def guest(self, call: Call) -> Guest:
        now_s = self._wall_clock()
        tenant = self._tenant(call.headers, now_s)
        return Guest(tenant.name, self._salts.value.of(tenant, now_s), self._quotas.of(tenant))

    def known(self, headers: Headers) -> None:
        self._tenant(headers, self._wall_clock())

    def named(self, name: str | None) -> Guest:
        if not name:
            return Guest("", "", None)
        tenant = self._register.value.named(name)
        if tenant is None:
            raise BadRequest(f"no tenant is named {name[:100]!r}")
        return Guest(name, self._salts.value.of(tenant, self._wall_clock()), None)

    def salted(self, call: Call, ask: Ask, guest: Guest) -> Call:
        return self._paths.salted(call, ask, guest.salt)

    def answered(self, tenant: str, outcome: Outcome) -> None:
        self._counts.answered(tenant, outcome)
        if outcome.output_tokens:
            self._quotas.used(tenant, outcome.output_tokens)

    def label(self, tenant: str) -> str:
        return self._counts.label(tenant)

    def _tenant(self, headers: Headers, now_s: float) -> Tenant:
        given = credential(headers)
        tenant = self._register.value.of_key(given, now_s)
        if tenant is not None:
            return tenant
        if self._tokens is None or given.count(b".") != 2:
            raise Unauthorized("the API key is not known here, or its time is over")
        tenant = self._register.value.named(self._tokens.value.tenant_of(given, now_s))
        if tenant is None:
            raise Unauthorized("the token names a tenant that is not in the tenants file")
        return tenant


def credential(headers: Headers) -> bytes:
    """The one credential of a request. Raises `Unauthorized` without one, `BadRequest` for more than one."""
    found: list[bytes] = []
    for name, value in headers:
        if len(name) in _LENGTHS and (key := name.lower()) in CREDENTIALS:
            if len(value) > LONGEST_BYTES:
                raise HeadTooLarge(f"the {key.decode()} header is longer than {LONGEST_BYTES} bytes; no key is")
            if key == b"authorization":
                if value[: len(_SCHEME)].lower() != _SCHEME:
                    raise Unauthorized("the Authorization header is not of the form: Bearer KEY")
                found.append(value[len(_SCHEME) :].strip())
            else:
                found.append(value.strip())
    if not found or not found[0]:
        raise Unauthorized("no API key; send it as Authorization: Bearer KEY")
    if len(found) > 1:
        raise BadRequest("the request has more than one credential; send exactly one")
    return found[0]


_LENGTHS: Final = frozenset(map(len, CREDENTIALS))
