"""A comparison for a terminal: what was cached, how fast it was, how the work was spread; bounds above policies.

The one rule: a dash is unknown. With several seeds a cell is their mean, and the spread is half of least to most. Not
here: where it is printed.
"""

from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sim.compare import Comparison, Row
from sim.results import Part, Result, Spread

DASH = "–"
_MOST_PARTS = 4


def percent(fraction: float | None) -> str:
    return DASH if fraction is None else f"{fraction:.1%}"


def seconds(value: float | None) -> str:
    """Three digits or so: 840 µs, 12.3 ms, 123 ms, 1.23 s, 123 s."""
    if value is None:
        return DASH
    if value == 0:
        return "0 s"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        number = value * factor
        if number >= 1 or unit == "µs":
            return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"
    return DASH


def whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    return DASH if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


_Column = tuple[str, Callable[[Result], str], str]
"""Head, cell, and the number whose spread over seeds is shown; the empty string for none."""

_CACHE: tuple[_Column, ...] = (
    ("available", lambda one: percent(one.available_hit_rate), ""),
    ("predicted", lambda one: percent(one.predicted_hit_rate), ""),
    ("delivered", lambda one: percent(one.hit_rate), "hit_rate"),
    ("computed tokens", lambda one: whole(one.computed_tokens), ""),
    ("of prompt tokens", lambda one: whole(one.prompt_tokens), ""),
    ("duplicated KV", lambda one: percent(one.duplicated_fraction), ""),
)
_LATENCY: tuple[_Column, ...] = (
    ("TTFT mean", lambda one: seconds(one.ttft_s.mean), "ttft_s.mean"),
    ("p50", lambda one: seconds(one.ttft_s.p50), ""),
    ("p95", lambda one: seconds(one.ttft_s.p95), ""),
    ("p99", lambda one: seconds(one.ttft_s.p99), "ttft_s.p99"),
    ("TPOT p50", lambda one: seconds(one.tpot_s.p50), ""),
    ("p95", lambda one: seconds(one.tpot_s.p95), ""),
    ("p99", lambda one: seconds(one.tpot_s.p99), ""),
    ("E2E p50", lambda one: seconds(one.e2e_s.p50), ""),
    ("p95", lambda one: seconds(one.e2e_s.p95), ""),
    ("p99", lambda one: seconds(one.e2e_s.p99), ""),
)
_LOAD: tuple[_Column, ...] = (
    ("good", lambda one: percent(one.goodput_fraction), "goodput_fraction"),
    ("goodput /s", lambda one: number(one.goodput), ""),
    ("requests /s", lambda one: number(one.requests_per_s), ""),
    ("output tokens /s", lambda one: whole(one.output_tokens_per_s), "output_tokens_per_s"),
    ("imbalance", lambda one: number(one.imbalance), ""),
    ("queue mean", lambda one: number(one.queue_mean), ""),
    ("most", lambda one: whole(one.queue_max), ""),
    ("preemptions", lambda one: whole(one.preemptions), ""),
)


def tables(comparison: Comparison) -> RenderableType:
    """Everything there is to say of a comparison."""
    limits = comparison.limits
    parts: list[RenderableType] = []
    if comparison.lesson:
        parts.append(_lesson(comparison))
    if comparison.has_prefixes:
        parts.append(_table(comparison, "what was cached", _CACHE, comparison.bounds))
    timed = [row for row in comparison.bounds if row.mean.ttft_s.mean is not None]
    parts.append(_table(comparison, "how fast", _LATENCY, timed))
    good = f"good: first token within {seconds(limits.ttft_s)}, then {seconds(limits.tpot_s)} a token"
    parts.append(_table(comparison, f"how the work was spread ({good})", _LOAD, timed))
    for title, of in (("routes", _routes), ("tenants", _tenants)):
        if any(of(row.mean) for row in comparison.rows):
            parts.append(_parts_table(comparison, title, of))
    parts.extend(Text(f"note: {note}", style="dim") for note in comparison.notes)
    return Group(*parts)


def _lesson(comparison: Comparison) -> Table:
    table = _empty("the lesson: plain LRU stores, one request at a time", "scenario")
    for name in ("blocks", "hit rate", "computed tokens", "of prompt tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.lesson:
        counts = (f"{row.blocks:,}", percent(row.hit_rate), whole(row.computed_tokens), whole(row.prompt_tokens))
        table.add_row(Text(row.scenario), *counts)
    return table


def _table(comparison: Comparison, title: str, columns: Sequence[_Column], bounds: Iterable[Row]) -> Table:
    table = _empty(title, "policy")
    for name, _, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for rows, style in ((tuple(bounds), "dim"), (comparison.rows, "")):
        for row in rows:
            mean, spread = row.mean, row.spread if len(row.results) > 1 else {}
            cells = [cell(mean) + _plus_minus(spread.get(measure), measure) for _, cell, measure in columns]
            table.add_row(Text(row.policy), *cells, style=style)
        if rows:
            table.add_section()
    return table


def _plus_minus(spread: tuple[float, float] | None, measure: str) -> str:
    if spread is None:
        return ""
    half = (spread[1] - spread[0]) / 2
    shown = (
        percent(half) if measure.endswith(("rate", "fraction")) else seconds(half) if "_s." in measure else whole(half)
    )
    return f" ±{shown}"


def _routes(one: Result) -> tuple[Part, ...]:
    return one.routes


def _tenants(one: Result) -> tuple[Part, ...]:
    return one.tenants


def _parts_table(comparison: Comparison, title: str, of: Callable[[Result], tuple[Part, ...]]) -> Table:
    """The parts with most prompt tokens, each under every policy."""
    first = of(comparison.rows[0].mean)
    largest = sorted(first, key=lambda part: -part.prompt_tokens)[:_MOST_PARTS]
    more = f" (the {len(largest)} largest of {len(first)})" if len(largest) < len(first) else ""
    table = _empty(f"{title}{more}", title[:-1])
    for name in ("policy", "requests", "available", "predicted", "delivered", "TTFT p50", "p95", "p99", "good"):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    means = [(row.policy, {part.name: part for part in of(row.mean)}) for row in comparison.rows]
    for name in (part.name for part in largest):
        for place, (policy, parts) in enumerate(means):
            part = parts.get(name)
            if part is not None:
                table.add_row(Text(name or "(none)") if not place else "", Text(policy), *_part_cells(part))
        table.add_section()
    return table


def _part_cells(part: Part) -> tuple[str, ...]:
    rates = (part.available_hit_rate, part.predicted_hit_rate, part.hit_rate)
    ttft: Spread = part.ttft_s
    return (
        whole(part.requests),
        *map(percent, rates),
        *map(seconds, (ttft.p50, ttft.p95, ttft.p99)),
        percent(part.goodput_fraction),
    )


def _empty(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    return table
