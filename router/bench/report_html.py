"""A run as one page that needs nothing else: what was measured, the figures, and bars of the time to first token.

The one rule: every number of a bar stands in the table too, and the page loads nothing from anywhere. Markup and
colours are in `router/data/bench.html.jinja`. Not here: files, and what the numbers mean.
"""

from dataclasses import dataclass
from importlib.resources import files

import jinja2

from router.bench.report import Report, Row, cells, columns, heads, interval, pace, seconds


@dataclass(frozen=True, slots=True)
class Bar:
    """The time to first token of one row: median and 95th percentile as shares of the axis."""

    label: str
    name: str
    p50_fraction: float
    p95_fraction: float
    told: str


def page(report: Report) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((files("router") / "data" / "bench.html.jinja").read_text("utf-8"))
    rows = report.rows
    return template.render(
        report=report,
        heads=list(heads(report)),
        columns=columns(report.target),
        rows=[(row, pace(row.rate), cells(row.figures, report.target)) for row in rows],
        ratios=[
            (one, pace(one.rate), [interval(ratio) for ratio in one.ratios], one.ratios[0].pairs)
            for one in report.compared
        ],
        bars=bars(rows),
        settings=[(name.replace("_", " "), _said(value)) for name, value in report.settings.items() if value],
        seconds=seconds,
    )


def bars(rows: tuple[Row, ...]) -> tuple[Bar, ...]:
    """A bar for each row whose first tokens were seen, on one axis that ends with the longest."""
    spreads = [(row, row.figures.ttft_s.p50, row.figures.ttft_s.p95) for row in rows]
    known = [(row, p50, p95) for row, p50, p95 in spreads if p50 is not None and p95 is not None]
    longest = max((p95 for _, _, p95 in known), default=0.0)
    if longest <= 0:
        return ()
    several = len({row.side for row in rows}) > 1
    return tuple(
        Bar(
            label=" ".join([*([row.side] if several else []), row.group, pace(row.rate)]),
            name=row.name,
            p50_fraction=max(0.0, p50 / longest),
            p95_fraction=max(0.0, p95 / longest),
            told=f"median {seconds(p50)}, 95 % {seconds(p95)}",
        )
        for row, p50, p95 in known
    )


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{one:g}" for one in value)
    return "yes" if value is True else str(value)
