"""How much a tenant may use: requests a minute, tokens a minute, requests in flight.

A token bucket holds one minute's worth and fills evenly (a burst of that much is allowed). Prompt tokens are taken
when a request is let in, output tokens when it has ended, so a bucket may fall below nothing and is waited for then.
The one rule: a tenant that is idle and has all it may use is forgotten, so memory follows activity, not names. Not
here: who a tenant is, and what it has used so far (`tenant_metrics`).
"""

import math
from collections.abc import Callable
from typing import Final

from router.errors import RateLimited
from router.tenant_keys import Quota, Tenant

_MINUTE_S: Final = 60.0
_FIRST_SWEEP: Final = 1024


class Bucket:
    """A level that rises by `per_minute` a minute up to that much, and falls by what is taken."""

    __slots__ = ("_at_s", "_level", "per_minute")

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """What is there; below zero when more was used than was there."""
        grown = (now_s - self._at_s) * self.per_minute / _MINUTE_S
        return min(float(self.per_minute), self._level + grown)

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until `amount` is there, or all that ever is; 0 when it is now."""
        missing = min(amount, float(self.per_minute)) - self.level(now_s)
        return max(0.0, missing * _MINUTE_S / self.per_minute)

    def take(self, amount: float, now_s: float) -> None:
        self._level = self.level(now_s) - amount
        self._at_s = now_s


class Usage:
    """What one tenant uses at the moment."""

    __slots__ = ("_clock", "in_flight", "quota", "requests", "tenant", "tokens")

    def __init__(self, tenant: Tenant, clock: Callable[[], float]) -> None:
        now_s = clock()
        self._clock = clock
        self.tenant = tenant
        self.quota = tenant.quota
        self.in_flight = 0
        self.requests = _bucket(tenant.quota.requests_per_minute, now_s)
        self.tokens = _bucket(tenant.quota.tokens_per_minute, now_s)

    def enter(self) -> None:
        """One more request. Raises `RateLimited`, and then nothing is counted."""
        now_s = self._clock()
        most = self.quota.in_flight
        if most is not None and self.in_flight >= most:
            raise RateLimited.of("requests in flight", most, 0, 1.0)
        if self.tokens is not None and (wait_s := self.tokens.wait_s(1, now_s)):
            raise _limited("tokens", self.tokens, wait_s, now_s)
        if self.requests is not None:
            if wait_s := self.requests.wait_s(1, now_s):
                raise _limited("requests", self.requests, wait_s, now_s)
            self.requests.take(1, now_s)
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1

    def ask(self, prompt_tokens: int) -> None:
        """A prompt of so many tokens. Raises `RateLimited`; a prompt over a whole minute's tokens needs them all."""
        if self.tokens is not None:
            now_s = self._clock()
            if wait_s := self.tokens.wait_s(prompt_tokens, now_s):
                raise _limited("tokens", self.tokens, wait_s, now_s)
            self.tokens.take(prompt_tokens, now_s)

    def used(self, output_tokens: int) -> None:
        """So many tokens were generated."""
        if self.tokens is not None:
            self.tokens.take(output_tokens, self._clock())

    def renewed(self, tenant: Tenant) -> None:
        """The same tenant with other limits: what it used under the ones that stay is remembered."""
        now_s = self._clock()
        before, self.quota, self.tenant = self.quota, tenant.quota, tenant
        if before.requests_per_minute != tenant.quota.requests_per_minute:
            self.requests = _bucket(tenant.quota.requests_per_minute, now_s)
        if before.tokens_per_minute != tenant.quota.tokens_per_minute:
            self.tokens = _bucket(tenant.quota.tokens_per_minute, now_s)

    @property
    def idle(self) -> bool:
        """Whether forgetting it changes nothing."""
        now_s = self._clock()
        full = all(one is None or one.level(now_s) >= one.per_minute for one in (self.requests, self.tokens))
        return full and not self.in_flight


class Quotas:
    """What the tenants with limits use at the moment."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._usages: dict[str, Usage] = {}
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._usages)

    def of(self, tenant: Tenant) -> Usage | None:
        """The usage of a tenant; None when it has no limits."""
        if tenant.quota == _FREE:
            return None
        usage = self._usages.get(tenant.name)
        if usage is None:
            if len(self._usages) >= self._sweep_at:
                self._usages = {name: one for name, one in self._usages.items() if not one.idle}
                self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._usages))
            usage = self._usages[tenant.name] = Usage(tenant, self._clock)
        elif usage.tenant is not tenant:
            usage.renewed(tenant)
        return usage

    def used(self, name: str, output_tokens: int) -> None:
        """The tenant of that name generated so many tokens."""
        usage = self._usages.get(name)
        if usage is not None:
            usage.used(output_tokens)


_FREE: Final = Quota()


def _bucket(per_minute: int | None, now_s: float) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, now_s)


def _limited(what: str, bucket: Bucket, wait_s: float, now_s: float) -> RateLimited:
    remaining = max(0, math.floor(bucket.level(now_s)))
    return RateLimited.of(what, bucket.per_minute, remaining, wait_s)
