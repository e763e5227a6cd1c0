"""What came of a calibration, as values, as a table for a terminal, and as JSON.

The one rule: an error is always told beside the unfitted ones, and what makes it doubtful is said. Not here: fitting
(`calibrate`).
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TextIO

_FEW = 100
_BAD = 0.1
_SLOW_S = 0.1


@dataclass(frozen=True, slots=True)
class Knobs:
    """What is fitted, in seconds; `compute_factor` scales the profile's times per token and per attended pair."""

    d0_s: float
    d1_s: float
    front_s: float
    compute_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Error:
    """One statistic of the log, and how far the model is off, as a fraction of it.

    `kernels` is without any engine around them, `before` is the profile as it comes, `after` is fitted.
    """

    quantity: str
    point: str
    real_s: float
    kernels: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of a fit. `errors` are of the requests it did not see when a part was held out."""

    profile: str
    requests: int
    skipped: int
    why: str
    """What is wrong with the first of those."""
    held_out: int
    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens that the fitted model found in its cache; None when the log tells lengths only."""
    preemptions: int
    before: Knobs
    after: Knobs
    replays: int
    errors: tuple[Error, ...]

    @property
    def worst(self) -> float:
        """The largest error that is left, as a fraction."""
        return max(abs(error.after) for error in self.errors)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the errors must know, a sentence each."""
        return tuple(_notes(self))


def _notes(found: Calibration) -> Iterator[str]:
    if found.cached_tokens is None:
        yield (
            "the log tells lengths only: prompts are taken to share nothing, what the server's cache saved shows as"
            " error; --prompts TRACE tells how they begin"
        )
    if found.why:
        yield f"requests were left out; the first: {found.why}"
    if found.requests < _FEW:
        yield f"only {found.requests} of the log's requests: its outer percentiles are single ones"
    if not any(error.quantity == "tpot" for error in found.errors):
        yield "no answer has a second token: d0 and d1 are fitted to prompts alone"
    if found.after.d0_s > _SLOW_S:
        yield f"a step takes {found.after.d0_s:.1f} s beside its kernels: are the log's times seconds?"
    elif found.worst > _BAD:
        yield (
            f"{found.worst:.0%} off: give the server's own --blocks, --max-num-seqs, --max-num-batched-tokens and"
            " scheduling, and a --profile of its model and GPU, or --fit-compute where there is none"
        )


def written(found: Calibration, out: TextIO) -> None:
    """One JSON object."""
    out.write(json.dumps({**asdict(found), "worst": found.worst, "notes": found.notes}, indent=2) + "\n")


def printed(found: Calibration) -> None:
    """Tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    skipped = f", {found.skipped} left out" if found.skipped else ""
    console.print(f"{found.requests} requests{skipped}; {found.replays} replays on {found.profile}")
    cached = "unknown" if found.cached_tokens is None else f"{found.cached_tokens:,} of {found.prompt_tokens:,}"
    console.print(f"prompt tokens from the cache: {cached}; preemptions: {found.preemptions}")
    knobs = Table("knob", "profile", "fitted")
    before, after = found.before, found.after
    knobs.add_row("d0, per step", f"{before.d0_s * 1e3:.2f} ms", f"{after.d0_s * 1e3:.2f} ms")
    knobs.add_row("d1, per sequence and step", f"{before.d1_s * 1e6:.1f} us", f"{after.d1_s * 1e6:.1f} us")
    knobs.add_row("front end, per request", f"{before.front_s * 1e3:.1f} ms", f"{after.front_s * 1e3:.1f} ms")
    if after.compute_factor != before.compute_factor:
        knobs.add_row("compute, of the profile's", f"{before.compute_factor:.2f}", f"{after.compute_factor:.2f}")
    console.print(knobs)
    of = f"of {found.held_out} requests held out" if found.held_out else "of the same requests"
    errors = Table("", "", title=f"error {of}")
    for heading in ("real", "kernels alone", "profile", "fitted"):
        errors.add_column(heading, justify="right")
    for place, error in enumerate(found.errors):
        if place and error.quantity != found.errors[place - 1].quantity:
            errors.add_section()
        off = (f"{value:+.1%}" for value in (error.kernels, error.before, error.after))
        errors.add_row(error.quantity.upper(), error.point, _seconds(error.real_s), *off)
    console.print(errors)
    console.print(f"worst error {found.worst:.1%}")
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True, highlight=False)


def _seconds(value_s: float) -> str:
    return f"{value_s:.2f} s" if value_s >= 1 else f"{value_s * 1e3:.1f} ms"
