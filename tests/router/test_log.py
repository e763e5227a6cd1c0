"""Lines nobody can forge, and nothing in them that must not leave the process."""

import io
import json
import logging

import pytest
from aiohttp.http_exceptions import BadHttpMessage
from hypothesis import given
from hypothesis import strategies as st

from router.log import configure, fields, request_line, safe, without_secrets
from tests.router.outcomes import altered
from tests.router.test_metrics import DONE

KEY = "sk-test-K3yM4terial-"


@pytest.fixture
def written():
    """Where the lines go; the loggers are as before afterwards."""
    root, loggers = logging.getLogger(), ["", "aiohttp.access", "asyncio"]
    levels, handlers = [logging.getLogger(name).level for name in loggers], list(root.handlers)
    yield io.StringIO()
    root.handlers[:] = handlers
    for name, level in zip(loggers, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def test_a_text_line(written):
    configure(stream=written)
    logging.getLogger("router.x").info("replica %s is in", "r1", extra=fields(blocks=512, model="a b", gone=None))
    line = written.getvalue()
    assert line.endswith('Z INFO router.x replica r1 is in blocks=512 model="a b"\n')


def test_a_json_line(written):
    configure(format="json", stream=written)
    logging.getLogger("router.x").warning("full", extra=fields(blocks=512, message="not the message"))
    line = json.loads(written.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {"level": "warning", "logger": "router.x", "message": "full", "blocks": 512}


def test_levels(written):
    configure(level="warning", stream=written)
    logging.getLogger("router.x").info("quiet")
    assert written.getvalue() == ""


def test_configuring_twice_does_not_write_twice(written):
    configure(stream=written)
    configure(stream=written)
    logging.getLogger("router.x").info("once")
    assert written.getvalue().count("once") == 1


@pytest.mark.parametrize("format_name", ["text", "json"])
def test_control_characters_can_not_start_a_line_or_reach_a_terminal(written, format_name):
    configure(format=format_name, stream=written)
    nasty = "id\n2026 INFO forged\r\x1b[31m\u2028\u202e\ud800\x00\x9b"
    logging.getLogger("router.x").info("from %s", nasty, extra=fields(id=nasty))
    text = written.getvalue()
    assert len(text.splitlines()) == 1
    assert not any(char in text[:-1] for char in "\n\r\x1b\u2028\u202e\ud800\x00\x9b")
    text.encode("utf-8")


def test_long_values_are_cut(written):
    configure(stream=written)
    logging.getLogger("router.x").info("x" * 1_000_000, extra=fields(id="y" * 1_000_000))
    assert len(written.getvalue()) < 2_500


def test_a_traceback_is_indented_and_can_not_forge_lines(written):
    configure(stream=written)
    try:
        raise RuntimeError("bad\n2026 INFO forged\n" + KEY)
    except RuntimeError:
        logging.getLogger("router.x").exception("failed")
    lines = written.getvalue().splitlines()
    assert all(line.startswith("    | ") for line in lines[1:])
    assert "RuntimeError: bad" in lines[-3]
    assert KEY not in written.getvalue()


def test_the_http_parser_of_aiohttp_does_not_quote_headers(written):
    configure(stream=written)
    try:
        raise BadHttpMessage("Authorization: " + KEY)
    except BadHttpMessage:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    assert written.getvalue().endswith("a client sent bytes that are not valid HTTP\n")


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {KEY}",
        f"b'authorization: Basic {KEY}'",
        f"GET /v1/models?api_key={KEY}&x=1",
        f"http://user:{KEY}@host:8000/",
        f'{{"api_key": "{KEY}"}}',
        f"x-api-key={KEY}",
        f"the key {KEY} is wrong",
        f"password: '{KEY}'",
    ],
)
def test_what_looks_like_a_key_is_blotted_out(text):
    cleaned = without_secrets(text)
    assert not any(KEY[start : start + 8] in cleaned for start in range(len(KEY) - 7))


def test_ordinary_text_stays():
    for text in ["prompt_tokens=12 tokens: 3", "replica r1 (http://h:1) refused the connection", "task-force of sk-1"]:
        assert without_secrets(text) == text


def test_one_line_per_request_has_numbers_and_words_only(written):
    configure(level="debug", stream=written)
    request_line(altered(DONE, model="bad\nmodel"), "7")
    line = written.getvalue()
    assert line.count("\n") == 1
    for part in ["DEBUG router.requests ok", "id=7", "status=200", "ttft_s=0.02", "delivered_tokens=32", "replica=r1"]:
        assert part in line
    assert "retries" not in line


def test_request_lines_cost_nothing_when_nobody_reads_them(written):
    configure(level="info", stream=written)
    request_line(DONE, "7")
    assert written.getvalue() == ""
    request_line(DONE, "7", level=logging.INFO)
    assert written.getvalue().count("\n") == 1


@given(st.text())
def test_safe_text_is_one_printable_line(text):
    found = safe(text)
    assert len(found.splitlines()) <= 1
    found.encode("utf-8")
