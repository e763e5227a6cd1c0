"""What came of a run: a row for every request, in columns, and what the replicas counted.

The one rule: facts only, one row a request, nothing averaged. Columns are numpy arrays in the order of the requests'
numbers. Not here: the columns while a run lasts (`rows`), and what the numbers mean (`results`).
"""

import hashlib
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
