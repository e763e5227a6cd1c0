"""The trace formats, in the order in which they are tried on the first row.

The one rule: a format is known by the members of its first row, never by a file's name. Not here: how rows become a
workload (`opening`).
"""

from sim.traces.bodies import FORMATS as BODIES
from sim.traces.format import Format
from sim.traces.hash_ids import FORMATS as HASH_IDS
from sim.traces.lengths import FORMATS as LENGTHS
from sim.traces.logs import FORMATS as LOGS
from sim.traces.otel import FORMATS as SPANS
from sim.traces.recorded import FORMATS as RECORDED
from sim.traces.rows import Item
from sim.traces.weka import FORMATS as SESSIONS

FORMATS: tuple[Format, ...] = (
    *RECORDED,
    *SESSIONS,
    *HASH_IDS,
    *SPANS,
    *LOGS,
    *BODIES,
    *LENGTHS,
)


def detected(first: Item) -> Format | None:
    """The format whose first row this is."""
    return next((known for known in FORMATS if known.matches(first)), None)
