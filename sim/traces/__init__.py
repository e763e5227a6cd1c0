"""Traces: what engines, gateways and tracers logged, read as workloads.

`open_trace` makes a workload of a file and `describe` says what is in it; the format is told by the first row
(`formats`). Files are read once, line by line (`files`), rows become columns (`table`), times and block keys are made
when somebody goes through the arrivals (`replays`). No text is kept, and nothing is made up without a note.
"""

from sim.traces.opening import open_trace
from sim.traces.rows import TraceError
from sim.traces.statistics import Statistics, describe

__all__ = ["Statistics", "TraceError", "describe", "open_trace"]
