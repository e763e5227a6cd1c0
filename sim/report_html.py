"""A comparison as one page that needs nothing else: tables, and charts drawn as inline SVG.

The one rule: every number of a chart stands in a table too, and the page loads nothing from anywhere. Coordinates are
worked out here, markup and colours are in `data/report.html.jinja`. Not here: files, and what the numbers mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2

from sim.compare import Comparison, Row
from sim.report_table import number, percent, seconds, whole
from sim.results import CURVE_FRACTIONS

_COLOURS = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 16.0, 12.0, 40.0
_WIDTH, _HEIGHT = 720.0, 340.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, in units of the drawing, and its words."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """One distribution: a policy's colour and the points of its polyline."""

    name: str
    colour: str
    points: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """The chart of TTFT: share of requests over seconds on a logarithmic axis."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    limit: Tick | None


@dataclass(frozen=True, slots=True)
class Bar:
    """One value of one row, as a share of the axis."""

    kind: str
    fraction: float
    label: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A row of bars."""

    name: str
    colour: str
    bars: tuple[Bar, ...]
    note: str = ""


def page(comparison: Comparison) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "seconds": seconds, "whole": whole, "number": number}
    template = environment.from_string((files("sim") / "data" / "report.html.jinja").read_text("utf-8"))
    timed = [row for row in (*comparison.bounds, *comparison.rows) if row.mean.ttft_curve_s]
    return template.render(
        comparison=comparison,
        bounds=[(row, row.mean) for row in comparison.bounds],
        rows=[(row, row.mean) for row in comparison.rows],
        timed=[(row, row.mean) for row in timed],
        headline=headline(comparison),
        distribution=distribution(timed, comparison.limits.ttft_s, colours(comparison)),
        hits=hit_bars(comparison),
        replicas=replica_bars(comparison),
    )


def colours(comparison: Comparison) -> dict[str, str]:
    """The class that gives a row its colour, the same in every chart: grey for bounds; after eight, dashed."""
    found = {row.policy: "bound" for row in comparison.bounds}
    for place, row in enumerate(comparison.rows):
        found[row.policy] = f"c{place % _COLOURS}" + (" dashed" if place >= _COLOURS else "")
    return found


def headline(comparison: Comparison) -> str:
    """What a reader in a hurry takes home; the empty string when there is nothing to compare."""
    means = [row.mean for row in comparison.rows]
    known = [(one.ttft_s.mean, one) for one in means if one.ttft_s.mean is not None]
    if len(known) < 2:
        return ""
    (best_s, best), (worst_s, worst) = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
    if worst_s <= 1.05 * best_s:
        return "Every policy is within 5 % of the others in mean time to first token: on this load it does not matter."
    told = (
        f"{best.policy} gives the first token after {seconds(best_s)} on average,"
        f" {worst.policy} after {seconds(worst_s)}"
    )
    if best.hit_rate is None or worst.hit_rate is None:
        return f"{told}."
    return f"{told}; their caches deliver {percent(best.hit_rate)} and {percent(worst.hit_rate)} of prompt tokens."


def distribution(rows: Sequence[Row], limit_s: float, colour_of: Mapping[str, str]) -> Distribution | None:
    """None when nothing was timed."""
    curves = [(row.policy, row.mean.ttft_curve_s) for row in rows]
    values = [value for _, curve in curves for value in curve if value > 0]
    if not values:
        return None
    stops = _stops(min(values), max(values))
    low, high = math.log10(stops[0]), math.log10(stops[-1])
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(value_s: float) -> float:
        place = (math.log10(max(value_s, stops[0])) - low) / (high - low)
        return round(_LEFT + across * min(1.0, place), 1)

    def y(fraction: float) -> float:
        return round(_TOP + down * (1 - fraction), 1)

    lines = []
    for name, curve in curves:
        points = " ".join(f"{x(value)},{y(part)}" for value, part in zip(curve, CURVE_FRACTIONS, strict=True))
        lines.append(Line(name, colour_of[name], points))
    return Distribution(
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
        bottom=_HEIGHT - _BOTTOM,
        lines=tuple(lines),
        x_ticks=tuple(Tick(x(stop), _time(stop)) for stop in stops),
        y_ticks=tuple(Tick(y(part), f"{part:.0%}") for part in (0, 0.25, 0.5, 0.75, 0.95, 1)),
        limit=Tick(x(limit_s), f"limit {seconds(limit_s)}") if stops[0] < limit_s < stops[-1] else None,
    )


def hit_bars(comparison: Comparison) -> tuple[Bars, ...]:
    """Of every row, what was available, predicted and delivered; of a bound only what it delivers."""
    if not comparison.has_prefixes:
        return ()
    found = []
    colour_of = colours(comparison)
    for row in (*comparison.bounds, *comparison.rows):
        mean = row.mean
        rates = (("available", mean.available_hit_rate), ("predicted", mean.predicted_hit_rate))
        told = (*rates, ("delivered", mean.hit_rate))
        bars = tuple(Bar(kind, rate, percent(rate)) for kind, rate in told if rate is not None)
        found.append(Bars(row.policy, colour_of[row.policy], bars))
    return tuple(found)


def replica_bars(comparison: Comparison) -> tuple[Bars, ...]:
    """Of every policy, the prompt tokens that each replica computed, on one scale."""
    rows, colour_of = comparison.rows, colours(comparison)
    most = max((tokens for row in rows for tokens in row.mean.computed_by_replica), default=0)
    if not most:
        return ()
    found = []
    for row in rows:
        mean = row.mean
        bars = (Bar(f"r{place}", tokens / most, f"{tokens:,}") for place, tokens in enumerate(mean.computed_by_replica))
        note = f"{sum(mean.computed_by_replica):,} tokens, imbalance {number(mean.imbalance)}"
        found.append(Bars(row.policy, colour_of[row.policy], tuple(bars), note))
    return tuple(found)


def _stops(least_s: float, most_s: float) -> list[float]:
    """Round times from below the least to above the most: 1, 2, 5, 10, 20 …, or only tens where those are too many."""
    powers = range(math.floor(math.log10(least_s)), math.ceil(math.log10(most_s)) + 1)
    steps = (1, 2, 5) if len(powers) <= 5 else (1,)
    stops = [step * 10.0**power for power in powers for step in steps]
    first = max(place for place, stop in enumerate(stops) if stop <= least_s * (1 + 1e-9))
    last = next((place for place, stop in enumerate(stops) if stop >= most_s), len(stops) - 1)
    return stops[first : max(last, first + 1) + 1]


def _time(value_s: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value_s * factor >= 0.999:
            return f"{value_s * factor:,.0f} {unit}"
    return f"{value_s * 1e6:,.0f} µs"
