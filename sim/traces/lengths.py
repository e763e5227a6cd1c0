"""Traces of arrivals and lengths alone, as CSV: Azure's 2023 and 2024 sets and BurstGPT.

    Azure       TIMESTAMP (ISO, seven digits), ContextTokens, GeneratedTokens (Azure/AzurePublicDataset)
    BurstGPT    Timestamp (s), [Session ID, Elapsed time,] Model, Request tokens, Response tokens, … (HPMLL/BurstGPT)

The one rule: they know nothing of prefixes, so nothing may be said of hits.
"""

from collections.abc import Iterable

from sim.traces.format import Format, Reader, Reading, having, stateless
from sim.traces.rows import BadRow, Item, LeftOut, Row, moment, name_of, seconds, seconds_or_none, tokens


def _azure(item: Item) -> Iterable[Row]:
    time_s = moment(item, "TIMESTAMP")
    if time_s is None:
        raise BadRow("TIMESTAMP is missing")
    yield Row(time_s, _asked(tokens(item, "ContextTokens")), tokens(item, "GeneratedTokens"))


def _burst(reading: Reading) -> Reader:
    unit_s = reading.unit_s("s")

    def read(item: Item) -> Iterable[Row]:
        answer = tokens(item, "Response tokens")
        if not answer:
            raise LeftOut("a request that failed")
        yield Row(
            time_s=seconds(item, "Timestamp", unit_s),
            prompt_tokens=_asked(tokens(item, "Request tokens")),
            output_tokens=answer,
            session=name_of(item, "Session ID"),
            model=name_of(item, "Model") or "",
            took_s=seconds_or_none(item, "Elapsed time"),
        )

    return read


def _asked(prompt_tokens: int) -> int:
    if not prompt_tokens:
        raise LeftOut("the prompt is empty")
    return prompt_tokens


FORMATS = (
    Format("azure", having("TIMESTAMP", "ContextTokens", "GeneratedTokens"), stateless(_azure)),
    Format("burstgpt", having("Timestamp", "Request tokens", "Response tokens"), _burst),
)
