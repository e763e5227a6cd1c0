"""Anything at all thrown at the parsers that are ours: each answers, or refuses in the way it says it does.

`make fuzz` runs these for longer. Not here: llhttp and orjson, which are not ours.
"""

import json

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.addresses import normalised, parsed
from router.discovery import replicas_in
from router.engine_metrics import parse
from router.errors import BadRequest, ConfigError, RequestError
from router.http.heads import without_hop_by_hop
from router.http.messages import Call, origin_form, without_empty_lines
from router.kv_sources import told
from router.member_routes import change
from router.openai import asked
from router.probes import model_entries
from router.splice import safe, salted, unsalted
from router.usage import aborted, error_event, usage

HEADERS = st.lists(st.tuples(st.sampled_from([b"Connection", b"Te", b"X-A", b"Host"]) | st.binary(), st.binary()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
MEMBERS = st.sampled_from(
    ["model", "messages", "prompt", "cache_salt", "input", "stream", "max_tokens", "usage", "error"]
)
BODIES = st.binary(max_size=200) | st.dictionaries(MEMBERS | st.text(max_size=8), JSON, max_size=6).map(
    lambda body: json.dumps(body).encode()
)
PATHS = st.sampled_from([b"/v1/chat/completions", b"/v1/completions", b"/v1/messages", b"/tokenize", b"/sleep"])


def met(parser, given, refusal):
    """What a parser made of something, and what it said when it refused."""
    try:
        return parser(given), None
    except refusal as error:
        return None, error


@given(PATHS | st.binary(min_size=1), BODIES)
@example(b"/v1/completions", b"[" * 100_000)
@example(b"/v1/../sleep", b"{}")
def test_what_a_call_asks(target, body):
    ask, error = met(asked, Call.of(b"POST", origin_form(target), [], body, b"", ""), RequestError)
    if error is None:
        assert ".." not in ask.route.split("/")
    else:
        assert error.status in (400, 404)
        assert orjson.loads(error.body)["error"]["type"]


@given(HEADERS)
def test_headers_that_are_passed_on(headers):
    kept = without_hop_by_hop(headers)
    assert [field for field in kept if field[0].lower() in (b"connection", b"te")] == []
    assert without_hop_by_hop(kept) == kept


@given(st.binary(), HEADERS, st.binary())
def test_empty_lines(data, headers, body):
    bare = without_empty_lines(data, headers, body)
    assert data.startswith(bare)
    assert data[len(bare) :].strip(b"\r\n") == b""


@given(BODIES, st.text(alphabet="abc123", min_size=1))
def test_a_body_has_one_salt_and_nothing_else_changed(raw, salt):
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return
    if not isinstance(body, dict):
        return
    try:
        safe(body)
        made = salted(raw, body, salt)
    except BadRequest:
        return
    assert orjson.loads(made) == {**body, "cache_salt": salt}
    assert orjson.loads(unsalted(raw, body)) == {key: value for key, value in body.items() if key != "cache_salt"}


@given(st.binary() | BODIES.map(lambda body: b"data: " + body + b"\n\n"))
def test_the_end_of_a_reply(tail):
    found = usage(tail)
    assert found.cached_tokens is None or found.cached_tokens >= 0
    assert {error_event(tail), aborted(tail)} <= {True, False}


@given(
    st.text() | st.lists(st.sampled_from(["vllm:num_requests_running", "{", "}", '"', " 1", "\n", "NaN"])).map("".join)
)
def test_an_engines_metrics(text):
    assert parse(text).running is None or parse(text).running >= 0


@given(st.text())
def test_an_address(text):
    url, error = met(normalised, text, ValueError)
    assert str(error) if url is None else normalised(url) == url


@given(JSON)
def test_a_list_of_replicas(value):
    _, error = met(parsed, value, ValueError)
    assert error is None or str(error)


@given(BODIES)
def test_a_change_of_replicas(body):
    done, error = met(change, body, BadRequest)
    assert str(error) if done is None else done[0] in ("add", "drain", "remove")


@given(st.binary() | BODIES)
def test_what_a_replica_tells(body):
    assert model_entries(body) is None or isinstance(model_entries(body), list)
    assert isinstance(told(body, "http://127.0.0.1:1"), tuple)


@settings(max_examples=50)
@given(content=st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_a_file_of_replicas(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "fuzzed"
    file.write_bytes(content)
    found, error = met(replicas_in, file, ConfigError)
    assert isinstance(found, tuple) if error is None else "replicas_file" in str(error)
