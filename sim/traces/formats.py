"""The trace formats, in the order in which they are tried on the first row.

The one rule: a format is known by the members of its first row, never by a file's name. Not here: how rows become a
workload (`opening`).
"""

from sim.traces import bodies, hash_ids, lengths, logs, otel, recorded, weka
from sim.traces.format import Format
from sim.traces.rows import Item

FORMATS: tuple[Format, ...] = (
    *recorded.FORMATS,
    *weka.FORMATS,
    *hash_ids.FORMATS,
    *otel.FORMATS,
    *logs.FORMATS,
    *bodies.FORMATS,
    *lengths.FORMATS,
)


def detected(first: Item) -> Format | None:
    """The format whose first row this is."""
    return next((known for known in FORMATS if known.matches(first)), None)
