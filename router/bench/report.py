"""A run as a whole: what was measured, on what, and what must be known to read it; as a table and as JSON.

The one rule: a dash is unknown, and every doubt (late sends, cached tokens from counters, a phase cut short) is a note
beside the figures. No credential is in it: addresses hold none, headers and bodies are not kept. Not here: the page
(`report_html`).
"""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from router import __version__
from router.bench.compare import Compared, Ratio, compared
from router.bench.driver import LATE_S
from router.bench.phases import Name, Phase, Plan, Side
from router.bench.results import Figures, Target, figures

DASH = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """One phase of one side, all its turns together."""

    side: str
    group: str
    rate: float | None
    name: Name
    figures: Figures


@dataclass(frozen=True, slots=True)
class Report:
    """Everything there is to tell of a run."""

    date: str
    sides: tuple[Side, ...]
    plan: Plan
    target: Target
    phases: tuple[Phase, ...]
    settings: dict[str, Any]
    """What the user asked for, as JSON."""
    prompt_version: str | None = None
    interrupted: bool = False
    versions: tuple[tuple[str, str], ...] = (("prefix-router", __version__), ("python", platform.python_version()))

    @property
    def rows(self) -> tuple[Row, ...]:
        found: dict[tuple[str, str, float | None, Name], list[Phase]] = {}
        for phase in self.phases:
            part = phase.part
            found.setdefault((part.side.name, part.group.name, part.rate, part.name), []).append(phase)
        return tuple(Row(*key, figures(phases, self.target)) for key, phases in found.items())

    @property
    def compared(self) -> tuple[Compared, ...]:
        return compared(self.phases, self.target, self.plan.seed) if self.plan.interleaved else ()

    @property
    def failed(self) -> bool:
        """Whether a request went wrong, or none was answered."""
        rows = self.rows
        return not rows or any(row.figures.good < row.figures.requests for row in rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know, a sentence each."""
        return tuple(_notes(self))


def as_json(report: Report) -> dict[str, Any]:
    """One document; None is unknown."""
    return {
        "date": report.date,
        "versions": dict(report.versions),
        "settings": report.settings,
        "prompt_version": report.prompt_version,
        "interrupted": report.interrupted,
        "sides": [
            {"side": side.name, **asdict(side.about), "prompts": {group.name: group.digest for group in side.groups}}
            for side in report.sides
        ],
        "target": asdict(report.target),
        "phases": [
            {"side": row.side, "group": row.group, "rate_per_s": row.rate, "phase": row.name, **_figures(row.figures)}
            for row in report.rows
        ],
        "ratios_b_over_a": [
            {
                "group": row.group,
                "rate_per_s": row.rate,
                "phase": row.name,
                **{ratio.measure: _ratio(ratio) for ratio in row.ratios},
            }
            for row in report.compared
        ],
        "notes": list(report.notes),
    }


def tables(report: Report) -> RenderableType:
    """For a terminal."""
    parts: list[RenderableType] = [Text(line) for line in heads(report)]
    parts.append(_measured(report))
    if report.compared:
        parts.append(_ratios(report.compared))
    parts += [Text(f"note: {note}", style="dim") for note in report.notes]
    return Group(*parts)


def heads(report: Report) -> Iterable[str]:
    """A line for each side: what was measured."""
    for side in report.sides:
        one = side.about
        adapter = f", an adapter of {one.adapter_of}" if one.adapter_of else ""
        version = f", version {one.version}" if one.version else ""
        yield f"{side.name}  {one.url}: {one.model}{adapter}, template {one.template or 'unknown'}{version}"


def seconds(value: float | None) -> str:
    """Three digits or so."""
    if value is None:
        return DASH
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.{0 if value >= 0.1 else 1}f} ms"


def percent(fraction: float | None) -> str:
    return DASH if fraction is None else f"{fraction:.1%}"


def pace(rate: float | None) -> str:
    return "own times" if rate is None else f"{rate:g}/s"


def interval(ratio: Ratio) -> str:
    if ratio.value is None:
        return DASH
    return f"{ratio.value:.3f}" + ("" if ratio.low is None else f" ({ratio.low:.3f} to {ratio.high:.3f})")


def cells(one: Figures, target: Target) -> list[str]:
    """The figures of one row under `HEADS`."""
    cached = DASH if one.cached_tokens is None else f"{one.cached_tokens:,} ({percent(one.cached_fraction)})"
    return [
        f"{one.requests:,}",
        f"{one.requests - one.good:,}",
        f"{one.late:,}",
        *map(seconds, (one.ttft_s.p50, one.ttft_s.p95, one.e2e_s.p50, one.e2e_s.p95, one.tpot_s.p50, one.tpot_s.p95)),
        DASH if one.good_per_s is None else f"{one.good_per_s:.2f}",
        *([percent(one.in_time_fraction)] if target.is_set else []),
        cached,
    ]


def columns(target: Target) -> list[str]:
    latencies = ["TTFT p50", "p95", "E2E p50", "p95", "TPOT p50", "p95"]
    return ["sent", "failed", "late", *latencies, "good /s", *(["in time"] if target.is_set else []), "cached tokens"]


def _measured(report: Report) -> Table:
    table = _table(("side",) if len(report.sides) > 1 else (), columns(report.target))
    for row in report.rows:
        first = (row.side,) if len(report.sides) > 1 else ()
        table.add_row(*first, row.group, pace(row.rate), row.name, *cells(row.figures, report.target))
    return table


def _ratios(rows: Sequence[Compared]) -> Table:
    table = _table((), ["TTFT B/A (95 %)", "E2E B/A (95 %)", "TPOT B/A (95 %)", "pairs"])
    table.title = "medians of B over medians of A; below 1, B is faster"
    for row in rows:
        shown = [interval(ratio) for ratio in row.ratios]
        table.add_row(row.group, pace(row.rate), row.name, *shown, f"{row.ratios[0].pairs:,}")
    return table


def _table(before: Sequence[str], names: Sequence[str]) -> Table:
    table = Table(title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (*before, "group", "rate", "phase"):
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _figures(one: Figures) -> dict[str, Any]:
    return asdict(one) | {"errors": dict(one.errors)}


def _ratio(ratio: Ratio) -> dict[str, Any]:
    return {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "pairs": ratio.pairs}


def _notes(report: Report) -> Iterable[str]:
    if report.interrupted:
        yield "interrupted: requests under way were given up and are not counted"
    for row in report.rows:
        one = row.figures
        label = " ".join([*([row.side] if len(report.sides) > 1 else []), row.group, pace(row.rate), row.name])
        if one.errors:
            yield f"{label}: failed: " + ", ".join(f"{count} {kind}" for kind, count in one.errors)
        if one.late:
            yield (
                f"{label}: {one.late} of {one.requests} requests got out more than {1000 * LATE_S:.0f} ms late"
                f" (the latest {seconds(one.most_late_s)}): the load was not the one asked for"
            )
        if one.cached_source is None and 0 < one.told < one.good:
            yield f"{label}: only {one.told} of {one.good} answers told their cached tokens, so their sum is unknown"
    if any(row.figures.cached_source == "metrics" for row in report.rows):
        yield "where answers told no cached tokens they are from the engines' counters, which count whoever asks"
    if report.rows and all(row.figures.good and row.figures.cached_source is None for row in report.rows):
        yield "the server does not tell cached tokens (vLLM does with --enable-prompt-tokens-details)"
