"""The columns of an outcome while they grow.

The one rule: plain arrays, one row a request in the order of dispatch, so that a million requests fit in memory. Not
here: what stands in the columns (`outcome`).
"""

from array import array

import numpy as np

from sim.outcome import Floats, Ints, Outcome


class Rows:
    """The columns of an outcome while they grow, one row a request in the order of dispatch."""

    __slots__ = ("available", "cached", "end_s", "first_s", "number", "output", "predicted", "prompt", "queue",
                 "replica", "route", "routes", "sent_s", "tenant", "tenants")  # fmt: skip

    def __init__(self) -> None:
        self.number = array("q")
        self.sent_s, self.first_s, self.end_s = array("d"), array("d"), array("d")
        self.replica, self.tenant, self.route, self.queue = array("i"), array("i"), array("i"), array("i")
        self.prompt, self.output = array("i"), array("i")
        self.cached, self.predicted, self.available = array("i"), array("i"), array("i")
        self.tenants: dict[str, int] = {}
        self.routes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.number)

    def place_of(self, tenant: str, route: str) -> None:
        """Enter a request's tenant and route."""
        self.tenant.append(self.tenants.setdefault(tenant, len(self.tenants)))
        self.route.append(self.routes.setdefault(route, len(self.routes)))

    def outcome(
        self,
        *,
        replicas: int,
        preemptions: int,
        duplicated_fraction: float | None,
        refused: int,
        reasons: dict[str, int],
    ) -> Outcome:
        number = np.frombuffer(self.number, dtype=np.int64) if self.number else np.empty(0, np.int64)
        order = np.argsort(number, kind="stable")

        def ints(column: "array[int]") -> Ints:
            return np.frombuffer(column, dtype=np.int32)[order] if column else np.empty(0, np.int32)

        def floats(column: "array[float]") -> Floats:
            return np.frombuffer(column, dtype=np.float64)[order] if column else np.empty(0, np.float64)

        return Outcome(
            number=number[order],
            replica=ints(self.replica),
            tenant=ints(self.tenant),
            route=ints(self.route),
            prompt_tokens=ints(self.prompt),
            output_tokens=ints(self.output),
            cached_tokens=ints(self.cached),
            predicted_tokens=ints(self.predicted),
            available_tokens=ints(self.available),
            queue=ints(self.queue),
            sent_s=floats(self.sent_s),
            first_s=floats(self.first_s),
            end_s=floats(self.end_s),
            tenants=tuple(self.tenants),
            routes=tuple(self.routes),
            replicas=replicas,
            preemptions=preemptions,
            duplicated_fraction=duplicated_fraction,
            refused=refused,
            reasons=reasons,
        )
