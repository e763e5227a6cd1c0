"""What came of a run: a row for every request, in columns, and what the replicas counted.

The one rule: facts only, one row a request, nothing averaged. Columns are plain arrays while a run lasts, so that a
million requests fit in memory, and numpy arrays in the order of the requests' numbers afterwards. Not here: what the
numbers mean (`results`).
"""

import hashlib
from array import array
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Every request that was sent. Times in seconds of the workload's clock, NaN for what never happened."""

    number: npt.NDArray[np.int64]
    replica: Ints
    """Its place in the fleet."""
    tenant: Ints
    """Its place in `tenants`."""
    route: Ints
    """Its place in `routes`."""
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    """Prompt tokens found in the real cache when the request was first admitted."""
    predicted_tokens: Ints
    """What the router believed of the chosen replica."""
    available_tokens: Ints
    """What the router believed of the best replica."""
    queue: Ints
    """Requests that waited on the chosen replica when this one came."""
    sent_s: Floats
    first_s: Floats
    end_s: Floats
    tenants: tuple[str, ...]
    routes: tuple[str, ...]
    replicas: int
    preemptions: int
    duplicated_fraction: float | None
    """Share of the blocks cached at the end that another replica has too; None when nothing is cached."""
    refused: int
    """Requests that no replica can ever run. They have no row."""
    reasons: dict[str, int]
    """How often the policy gave which reason."""

    @property
    def digest(self) -> str:
        """The same for two runs exactly when every column is."""
        told = hashlib.sha256()
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                told.update(value.tobytes())
        return told.hexdigest()


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
