"""Hit rate per route, tenant and replica: available, predicted and delivered tokens side by side, as JSON.

A route is what the operator says: path, model, template, or a header (`route_by`). The one rule: no client can make
these tables grow; beyond so many names all others are `other`. Not here: Prometheus (`metrics`), why tokens were lost
(`losses`).
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from policies.types import Request
from router.http.messages import Call
from router.metrics import OTHER
from router.openai import ROUTES
from router.outcome import Outcome
from router.placing import Placed
from router.prompt_heads import Heads

_NAMES: Final = 256
_LONGEST_NAME: Final = 64
_OPEN: Final = 20_000
_ROWS = 5_000

Where = tuple[str, str, str]


class Routes:
    """Names the route of a request: at most so many different ones."""

    def __init__(self, rule: str) -> None:
        """`rule` is path, model, template or header:NAME."""
        self._rule, _, name = rule.partition(":")
        self._header = name.lower().encode("latin-1", "replace")
        self._names = dict.fromkeys(ROUTES) if self._rule == "path" else {}
        self._heads = Heads()

    def of(self, request: Request, call: Call) -> str:
        if self._rule == "header":
            told = call.header(self._header) or ""
            return self._known(told if told.isprintable() else "")
        if self._rule == "template":
            return self._heads.of(call.body) or OTHER
        return self._known(request.model if self._rule == "model" else request.route, closed=self._rule == "path")

    def _known(self, name: str, *, closed: bool = False) -> str:
        name = name[:_LONGEST_NAME]
        if name in self._names:
            return name
        if closed or len(self._names) >= _NAMES:
            return OTHER
        self._names[name] = None
        return name


class _Sums(Struct):
    requests: int = 0
    prompt: int = 0
    available: int = 0
    predicted: int = 0
    reported_prompt: int = 0
    """Prompt tokens of requests whose replica said how many were cached."""
    delivered: int = 0

    def plus(self, other: "_Sums") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def told(self) -> dict[str, Any]:
        """None where nothing is known, never 0."""
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt,
            "available_tokens": self.available,
            "predicted_tokens": self.predicted,
            "delivered_tokens": self.delivered if self.reported_prompt else None,
            "available_fraction": _share(self.available, self.prompt),
            "predicted_fraction": _share(self.predicted, self.prompt),
            "delivered_fraction": _share(self.delivered, self.reported_prompt),
        }


def _share(part: int, whole: int) -> float | None:
    return round(min(1.0, part / whole), 6) if whole else None


class Hits:
    """Told of every request when it comes and when it has ended."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, str] = OrderedDict()
        self._sums: dict[Where, _Sums] = {}
        self._tenants: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<Hits {len(self._sums)} rows>"

    def came(self, request: Request, label: str) -> None:
        """A request of the route `label` will be sent."""
        self._open[request.id] = label
        if len(self._open) > _OPEN:  # those that were refused before they were sent
            self._open.popitem(last=False)

    def answered(self, placed: Placed, outcome: Outcome) -> None:
        """A request has ended; those that got no answer and those whose prompts nobody could read don't count."""
        label = self._open.pop(placed.request.id, OTHER)
        if outcome.status != 200 or outcome.basis == "none":
            return
        tenant = placed.request.tenant
        if tenant not in self._tenants:
            if len(self._tenants) < _NAMES:
                self._tenants[tenant] = None
            else:
                tenant = OTHER
        key = (label, tenant, outcome.replica)
        sums = self._sums.get(key)
        if sums is None:
            if len(self._sums) >= _ROWS:
                key = (OTHER, OTHER, outcome.replica)
            sums = self._sums.setdefault(key, _Sums())
        sums.requests += 1
        sums.prompt += outcome.prompt_tokens
        sums.available += outcome.available_tokens
        sums.predicted += outcome.predicted_tokens
        if outcome.delivered_tokens is not None:
            sums.reported_prompt += outcome.prompt_tokens
            sums.delivered += outcome.delivered_tokens

    def forgotten(self, replica: str) -> None:
        """The replica has left for good: what was counted of it goes on as `other`."""
        for key in [key for key in self._sums if key[2] == replica]:
            self._sums.setdefault((key[0], key[1], OTHER), _Sums()).plus(self._sums.pop(key))

    def rows(self) -> Mapping[Where, _Sums]:
        """What was counted, by route, tenant and replica."""
        return self._sums

    def sums(self) -> dict[str, dict[str, list[int]]]:
        """By route, tenant and replica: tokens of prompts, available, predicted, of reported prompts, delivered."""
        found: dict[str, dict[str, list[int]]] = {"route": {}, "tenant": {}, "replica": {}}
        for where, row in self._sums.items():
            for kind, name in zip(found.values(), where, strict=True):
                sums = kind.get(name)
                if sums is None:
                    sums = kind[name] = [0] * 5
                sums[0] += row.prompt
                sums[1] += row.available
                sums[2] += row.predicted
                sums[3] += row.reported_prompt
                sums[4] += row.delivered
        return found

    def document(self) -> dict[str, Any]:
        """Rows, and sums per route and per tenant."""
        by_route: dict[str, _Sums] = {}
        by_tenant: dict[str, _Sums] = {}
        total = _Sums()
        for (route, tenant, _), sums in self._sums.items():
            by_route.setdefault(route, _Sums()).plus(sums)
            by_tenant.setdefault(tenant, _Sums()).plus(sums)
            total.plus(sums)
        return {
            "total": total.told(),
            "routes": [{"route": route, **sums.told()} for route, sums in sorted(by_route.items())],
            "tenants": [{"tenant": tenant, **sums.told()} for tenant, sums in sorted(by_tenant.items())],
            "rows": [
                {"route": route, "tenant": tenant, "replica": replica, **sums.told()}
                for (route, tenant, replica), sums in sorted(self._sums.items())
            ],
        }
