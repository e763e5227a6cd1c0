"""A comparison for machines: one JSON object, or CSV with a line for every row and seed.

The one rule: numbers as they are, under the names of `sim.results`; unknown is null in JSON and empty in CSV. Rows are
means over the seeds, `spread` gives the least and the most of each number. Not here: files and standard output.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import orjson

from sim.compare import Comparison, Row
from sim.results import Result

_LEFT_OUT = ("ttft_curve_s",)
_NESTED = ("computed_by_replica", "requests_by_replica", "routes", "tenants", "reasons", "ttft_curve_s")


def document(comparison: Comparison) -> dict[str, Any]:
    """The object of `--json`."""
    setup = comparison.setup
    told: dict[str, Any] = {
        comparison.source: comparison.name,
        "seed": comparison.seeds[0],
        "seeds": list(comparison.seeds),
        "setup": {
            "replicas": setup.replicas,
            "blocks": setup.blocks,
            "block_tokens": comparison.block_tokens,
            "profile": setup.profile.name,
            "profile_source": setup.profile.source,
            "profile_calibrated": setup.profile.calibrated,
            "max_num_seqs": setup.max_num_seqs,
            "max_batched_tokens": setup.max_batched_tokens,
            "async_scheduling": setup.async_scheduling,
            "belief": asdict(setup.belief),
        },
        "limits": asdict(comparison.limits),
        "has_prefixes": comparison.has_prefixes,
        "notes": list(comparison.notes),
        "bounds": [_row(row) for row in comparison.bounds],
        "policies": [_row(row) for row in comparison.rows],
    }
    if comparison.lesson:
        told["lesson"] = [asdict(row) for row in comparison.lesson]
    return told


def as_json(comparison: Comparison) -> bytes:
    """One line."""
    return orjson.dumps(document(comparison), option=orjson.OPT_APPEND_NEWLINE)


def as_csv(comparison: Comparison) -> str:
    """A head line, then a line for every bound and policy and seed."""
    lines = []
    for row in (*comparison.bounds, *comparison.rows):
        for seed, result in zip(comparison.seeds, row.results, strict=True):
            lines.append({"policy": row.policy, "seed": seed, **dict(_flat(result))})
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]) if lines else ["policy", "seed"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _row(row: Row) -> dict[str, Any]:
    told = {name: value for name, value in asdict(row.mean).items() if name not in _LEFT_OUT}
    if len(row.results) > 1:
        told["spread"] = {name: {"min": least, "max": most} for name, (least, most) in row.spread.items()}
    return told


def _flat(result: Result) -> Iterator[tuple[str, Any]]:
    for name, value in asdict(result).items():
        if name == "policy" or name in _NESTED:
            continue
        if isinstance(value, Mapping):
            for part, number in value.items():
                yield f"{name}.{part}", number
        else:
            yield name, value
