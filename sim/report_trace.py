"""The statistics of a trace as a table and as JSON.

The one rule: a row that is not known is left out of the table and null in JSON. Not here: the numbers (`statistics`).
"""

import json
from dataclasses import asdict

from rich import box
from rich.table import Table

from sim.report_table import number, percent, seconds, whole
from sim.traces.statistics import Prefixes, Quantity, Sessions, Statistics, Times

_Row = tuple[str, str]


def as_json(told: Statistics) -> str:
    """One object; `skipped` gives the bad rows by their reason."""
    return json.dumps({**asdict(told), "skipped": dict(told.skipped)}, indent=2) + "\n"


def table(told: Statistics) -> Table:
    """A row for everything that is known, in groups."""
    found = Table(title=f"{told.trace}: {told.format}", box=box.SIMPLE, show_header=False, title_justify="left")
    found.add_column()
    found.add_column()
    groups = [_sizes(told)]
    groups += [_when(told.times)] if told.times else []
    groups += [_who(told.sessions)] if told.sessions else []
    groups += [_shared(told.prefixes)] if told.prefixes else []
    groups += [[(f"left out: {reason}", whole(count)) for reason, count in told.skipped]]
    for rows in groups:
        for name, value in rows:
            found.add_row(name, value)
        found.add_section()
    return found


def _sizes(told: Statistics) -> list[_Row]:
    rows = [
        ("requests", whole(told.requests)),
        ("prompt tokens", f"{whole(told.prompt_tokens)}; of each {_quantity(told.prompt)}"),
        ("answer tokens", f"{whole(told.output_tokens)}; of each {_quantity(told.output)}"),
    ]
    rows += [("tenants", whole(told.tenants))] if told.tenants else []
    return rows + ([("routes", whole(told.routes))] if told.routes else [])


def _quantity(one: Quantity | None) -> str:
    if one is None:
        return "unknown"
    points = ("mean", "p50", "p90", "p99", "max")
    return ", ".join(f"{point} {whole(getattr(one, point))}" for point in points)


def _when(times: Times) -> list[_Row]:
    rows = [
        ("time", f"{seconds(times.duration_s)}, {number(times.requests_per_s)} requests/s"),
        ("distinct times", whole(times.distinct_times)),
        ("variation of gaps", f"{number(times.gap_variation)} (Poisson: 1)"),
    ]
    if times.dispersion is not None:
        minute = f"mean {number(times.per_minute_mean)}, max {whole(times.per_minute_max)}"
        rows.append(("requests a minute", f"{minute}, dispersion {number(times.dispersion)} (Poisson: 1)"))
    return rows


def _who(sessions: Sessions) -> list[_Row]:
    how = "inferred from prompts that continue each other" if sessions.inferred else "named by the trace"
    rows = [
        ("sessions", f"{whole(sessions.count)}, {how}"),
        ("turns", f"mean {number(sessions.turns_mean)}, max {whole(sessions.turns_max)}"),
        ("sessions of one turn", percent(sessions.single_turn_fraction)),
    ]
    if (gap := sessions.gap_s) is not None:
        rows.append(("from turn to turn", f"p50 {seconds(gap.p50)}, p90 {seconds(gap.p90)}, p99 {seconds(gap.p99)}"))
    return rows


def _shared(prefixes: Prefixes) -> list[_Row]:
    ids = f"{whole(prefixes.ids)}, {whole(prefixes.unique_ids)} of them unique"
    heads = f"{whole(prefixes.head_ids)} {'id' if prefixes.head_ids == 1 else 'ids'}"
    longest = f"up to {whole(prefixes.longest_head_tokens)} tokens"
    return [
        ("block ids", f"{ids}, {percent(prefixes.used_once_fraction)} used once; {prefixes.block_tokens} tokens each"),
        (
            "ideal hit rate",
            f"{percent(prefixes.ideal_hit_fraction)} of prompt tokens in one cache that forgets nothing",
        ),
        ("  of full blocks", percent(prefixes.ideal_full_hit_fraction)),
        ("  of ids", percent(prefixes.ideal_id_hit_fraction)),
        ("common heads", f"{heads}, {longest}, in {percent(prefixes.headed_fraction)} of the requests"),
    ]
