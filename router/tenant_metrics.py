"""What each tenant used, as Prometheus reads it.

The one rule: a label is a name that the tenants file holds, and only so many of them; tokens may name anybody, and
those are `other`. So neither 10,000 tenants nor any number of users make the series grow without bound. Not here:
limits (`quotas`).
"""

from collections.abc import Iterator
from typing import Final

from router.families import Built, Labels, added, counter, gauge
from router.metrics import OTHER
from router.outcome import Outcome
from router.rereading import Current
from router.tenant_keys import Register

LABELS: Final = 1000
"""Tenants that have a label of their own: the first so many of them that are active."""


class TenantCounts:
    """Sums per tenant."""

    def __init__(self, register: Current[Register], *, labels: int = LABELS) -> None:
        self._register = register
        self._most = labels
        self._labels: dict[str, str] = {}
        self._requests: dict[Labels, int] = {}
        self._tokens: dict[Labels, int] = {}

    def __repr__(self) -> str:
        return f"<TenantCounts of {len(self._labels)} tenants>"

    def answered(self, tenant: str, outcome: Outcome) -> None:
        """Book a finished request."""
        label = self.label(tenant)
        added(self._requests, (label, outcome.outcome), 1)
        added(self._tokens, (label, "prompt"), outcome.prompt_tokens)
        added(self._tokens, (label, "available"), outcome.available_tokens)
        added(self._tokens, (label, "predicted"), outcome.predicted_tokens)
        added(self._tokens, (label, "delivered"), outcome.delivered_tokens or 0)
        added(self._tokens, (label, "output"), outcome.output_tokens or 0)

    def collect(self) -> Iterator[Built]:
        yield counter("router_tenant_requests_total", self._requests.items())
        yield counter("router_tenant_tokens_total", self._tokens.items())
        yield gauge("router_tenants", [((), len(self._register.value))])
        yield gauge("router_tenants_file_faulty", [((), int(bool(self._register.fault)))])

    def label(self, tenant: str) -> str:
        """A tenant's name, or `other`."""
        known = self._labels.get(tenant)
        if known is not None:
            return known
        if len(self._labels) >= self._most or tenant not in self._register.value:
            return OTHER
        return self._labels.setdefault(tenant, tenant)
