"""Log lines on stderr: text with key=value, or one JSON object a line.

The one rule: nothing a client or a replica sent can forge, split or flood a line, and no prompt text, header or
credential is ever in one. Control characters are escaped, long values cut, what looks like a key blotted out.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from router.outcome import Outcome

LONGEST_VALUE = 200
LONGEST_MESSAGE = 2_000
LONGEST_TRACE = 8_000

# C0, DEL, C1, line and paragraph separators, everything that turns text around or hides in it, lone surrogates.
_UNSAFE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ud800-\\udfff]"
)
_SECRETS = (
    re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]+"),
    re.compile(
        r"(?i)\b((?:x-)?api[-_]?key|authorization|access[-_]?token|token|password|secret)(['\"]?\s*[=:]\s*b?['\"]?)[^\s'\"&,;]+"
    ),
    re.compile(r"()(?<![A-Za-z0-9])(?:sk|hf|pk)[-_][A-Za-z0-9_-]{6,}"),
    re.compile(r"(://)[^/\s@'\"]+@"),
)
_FIELDS = "router_fields"
# aiohttp's parser quotes the offending header, which may be the key, in the error it logs (seen with 3.14.5).
_QUOTING = "aiohttp.server"

requests_log = logging.getLogger("router.requests")


def configure(level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:  # noqa: A002 -- the setting's name
    """Send all loggers' lines to `stream` (stderr). Called once, at start; a second call replaces the first."""
    out = logging.StreamHandler(sys.stderr if stream is None else stream)
    out.setFormatter(JsonLines() if format == "json" else TextLines())
    root = logging.getLogger()
    for earlier in [old for old in root.handlers if isinstance(old.formatter, Lines)]:
        root.removeHandler(earlier)
    root.addHandler(out)
    root.setLevel(level.upper())
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Key=value pairs for one line: `log.info("replica added", extra=fields(name="r1"))`. None is left out."""
    return {_FIELDS: values}


def request_line(outcome: "Outcome", request_id: str, *, level: int = logging.DEBUG) -> None:
    """One line for one finished request: numbers and constant words, and ids made safe."""
    line = fields(
        id=request_id[:64],
        route=outcome.route,
        model=outcome.model,
        replica=outcome.replica,
        reason=outcome.reason,
        status=outcome.status,
        duration_s=round(outcome.duration_s, 4),
        ttft_s=None if outcome.ttft_s is None else round(outcome.ttft_s, 4),
        prompt_tokens=outcome.prompt_tokens,
        available_tokens=outcome.available_tokens,
        predicted_tokens=outcome.predicted_tokens,
        delivered_tokens=outcome.delivered_tokens,
        output_tokens=outcome.output_tokens,
        basis=outcome.basis,
        retries=outcome.retries or None,
    )
    requests_log.log(level, "%s", outcome.outcome, extra=line)


def safe(text: str, limit: int = LONGEST_VALUE) -> str:
    """The text on one line, cut to `limit` characters, with nothing in it that acts on a terminal or a log reader."""
    cut = len(text) > limit
    text = _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text[:limit])
    return f"{text}…" if cut else text


def without_secrets(text: str) -> str:
    """The text with everything that looks like a credential replaced by `…`: a second net, not the first."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: "".join(group for group in found.groups() if group) + "…", text)
    return text


class Lines(logging.Formatter):
    """What both formats share: the parts of a record, made safe."""

    def parts(self, record: logging.LogRecord) -> tuple[str, dict[str, Any], list[str]]:
        """Message, fields and the lines of a traceback."""
        if record.name == _QUOTING and record.exc_info and _is_parser_error(record.exc_info[1]):
            return "a client sent bytes that are not valid HTTP", {}, []
        message = safe(without_secrets(record.getMessage()), LONGEST_MESSAGE)
        given = getattr(record, _FIELDS, {})
        values = {key: _plain(value) for key, value in given.items() if value is not None}
        trace: list[str] = []
        if record.exc_info:
            text = without_secrets(self.formatException(record.exc_info))[-LONGEST_TRACE:]
            trace = [safe(line, LONGEST_MESSAGE) for line in text.split("\n")]
        return message, values, trace

    def when(self, record: logging.LogRecord) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(Lines):
    """`2026-11-30T06:00:00.000Z INFO router.health replica r1 is in key=value`; a traceback is indented below."""

    def format(self, record: logging.LogRecord) -> str:
        message, values, trace = self.parts(record)
        told = "".join(f" {key}={_quoted(value)}" for key, value in values.items())
        below = "".join(f"\n    | {line}" for line in trace)
        return f"{self.when(record)} {record.levelname} {record.name} {message}{told}{below}"


class JsonLines(Lines):
    """One object a line: time, level, logger, message, the fields, and `trace` as a list of lines."""

    def format(self, record: logging.LogRecord) -> str:
        message, values, trace = self.parts(record)
        head: dict[str, Any] = {
            "time": self.when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        line = head | {key: value for key, value in values.items() if key not in head}
        return json.dumps(line | ({"trace": trace} if trace else {}), ensure_ascii=False)


def _plain(value: object) -> object:
    """Numbers and booleans stay; everything else becomes safe text."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        value = ",".join(f"{key}:{part}" for key, part in value.items())
    return safe(without_secrets(str(value)))


def _quoted(value: object) -> str:
    """As it is when it is one word, else in double quotes."""
    text = str(value)
    if text and not re.search(r'[\s"=]', text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_parser_error(error: BaseException | None) -> bool:
    return any(kind.__module__ == "aiohttp.http_exceptions" for kind in type(error).__mro__)
