"""Spans as a collector would get them, and the trace context as a replica gets it."""

import asyncio
import re

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import router.tracing
from router.errors import ConfigError
from tests.fakes import client_of, fake_replica, ok, post, posted, router_over, said

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = b'{"model":"m","prompt":"a very secret sentence","max_tokens":3,"user":"ann"}'
USAGE = (
    b'{"choices":[{"text":"the secret answer"}],"usage":{"prompt_tokens":24,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":16}}}'
)
ON = {"tracing__endpoint": "http://127.0.0.1:4318"}


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()

    def kept(_endpoint: str) -> TracerProvider:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return provider

    monkeypatch.setattr(router.tracing, "exporting", kept)
    return exporter


async def test_off_the_context_goes_through_as_it_came():
    async with fake_replica() as replica, router_over(replica) as up:
        await posted(up.url, SECRET, b"traceparent: " + PARENT, b"tracestate: a=1,b=2")
    (seen,) = replica.seen
    assert seen.values(b"traceparent") == [PARENT]
    assert seen.values(b"tracestate") == [b"a=1,b=2"]


async def test_a_span_continues_the_clients_and_is_the_replicas_parent(spans):
    async with fake_replica(said(ok(USAGE))) as replica, router_over(replica, **ON) as up:
        assert (await posted(up.url, SECRET, b"Traceparent: " + PARENT, b"tracestate: a=1,b=2")).status == 200
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == ("POST /v1/completions", SpanKind.SERVER)
    assert (span.context.trace_id, span.parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    (seen,) = replica.seen
    assert seen.values(b"traceparent") == [b"00-%032x-%016x-01" % (span.context.trace_id, span.context.span_id)]
    assert seen.values(b"tracestate") == [b"a=1,b=2"]
    assert seen.body == SECRET


async def test_attributes_tell_the_decision_and_the_cache_and_no_text(spans):
    async with fake_replica(said(ok(USAGE))) as replica, router_over(replica, **ON) as up:
        await posted(up.url, SECRET, b"Authorization: Bearer s3cret")
    (span,) = spans.get_finished_spans()
    told = dict(span.attributes)
    wanted = {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.usage.input_tokens": 24,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "router.replica": "r1",
        "router.delivered_tokens": 16,
        "router.outcome": "ok",
        "router.retries": 0,
    }
    assert {name: told.get(name) for name in wanted} == wanted
    assert told["gen_ai.response.time_to_first_chunk"] > 0
    assert [event.name for event in span.events] == ["placed"]
    everything = span.to_json()
    for word in ("secret", "s3cret", "ann"):
        assert word not in everything.replace("tenant", "")


async def test_without_a_parent_a_trace_begins_here(spans):
    async with fake_replica() as replica, router_over(replica, **ON) as up:
        await posted(up.url, SECRET)
        await posted(up.url, SECRET, b"traceparent: " + PARENT, b"traceparent: " + PARENT)
        await posted(up.url, SECRET, b"traceparent: nonsense")
    assert [span.parent for span in spans.get_finished_spans()] == [None] * 3
    parents = [seen.values(b"traceparent") for seen in replica.seen]
    assert all(len(one) == 1 and re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]", one[0]) for one in parents)


async def test_what_the_client_does_not_sample_is_not_recorded_and_passed_on_so(spans):
    async with fake_replica() as replica, router_over(replica, **ON) as up:
        await posted(up.url, SECRET, b"traceparent: " + PARENT[:-2] + b"00")
    assert spans.get_finished_spans() == ()
    (value,) = replica.seen[0].values(b"traceparent")
    assert value.startswith(PARENT[:35])
    assert value.endswith(b"-00")


@pytest.mark.parametrize(
    ("raw", "status", "code", "kind"),
    [
        (post(b"{"), 400, "invalid_json", StatusCode.UNSET),
        (post(b'{"model":"other","prompt":"x"}'), 404, "model_not_found", StatusCode.UNSET),
    ],
)
async def test_refusals(spans, raw, status, code, kind):
    async with fake_replica() as replica, router_over(replica, **ON) as up, client_of(up.url) as client:
        await client.send(raw)
        assert (await client.reply()).status == status
    (span,) = spans.get_finished_spans()
    assert span.attributes["http.response.status_code"] == status
    assert span.status.status_code is kind
    assert span.attributes["error.type"]


async def test_errors_of_replicas(spans):
    broken = said(ok(b"{}", status=b"500 Internal Server Error"))
    async with fake_replica(broken) as replica, router_over(replica, **ON) as up:
        assert (await posted(up.url, SECRET)).status == 500
    (span,) = spans.get_finished_spans()
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "500")


async def test_requests_at_once_keep_their_own_spans(spans):
    async with fake_replica(said(ok(USAGE))) as one, fake_replica() as two, router_over(one, two, **ON) as up:
        for _ in range(4):
            await posted(up.url, SECRET)
        async with client_of(up.url) as side:  # on the application's side of the port too
            await side.send(b"GET /v1/files?name=secret HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await side.reply()).status == 200
    found = spans.get_finished_spans()
    assert [span.attributes["router.replica"] for span in found[:4]] == ["r1", "r2", "r1", "r2"]
    assert found[4].name == "GET"
    assert "secret" not in found[4].to_json()


def test_an_endpoint_gets_its_path(monkeypatch):
    urls = []
    monkeypatch.setattr(router.tracing, "OTLPSpanExporter", lambda endpoint, timeout: urls.append(endpoint) or Silent())
    for endpoint in ("http://c:4318", "http://c:4318/", "https://c/own/traces"):
        router.tracing.exporting(endpoint).shutdown()
    assert urls == ["http://c:4318/v1/traces", "http://c:4318/v1/traces", "https://c/own/traces"]


class Silent(InMemorySpanExporter):
    pass


async def test_spans_reach_a_collector_before_the_router_ends():
    taken = []

    async def collect(request: web.Request) -> web.Response:
        taken.append((request.path, ExportTraceServiceRequest.FromString(await request.read())))
        return web.Response(body=b"", content_type="application/x-protobuf")

    application = web.Application()
    application.router.add_post("/{path:.*}", collect)
    async with (
        TestServer(application) as collector,
        fake_replica(said(ok(USAGE))) as replica,
        router_over(replica, tracing__endpoint=str(collector.make_url("/"))) as up,
    ):
        await posted(up.url, SECRET)
    (told,) = taken
    assert told[0] == "/v1/traces"
    (spans,) = told[1].resource_spans
    assert [span.name for span in spans.scope_spans[0].spans] == ["POST /v1/completions"]
    named = {one.key: one.value.string_value for one in spans.resource.attributes}
    assert named["service.name"] == "prefix-router"
    assert b"secret" not in told[1].SerializeToString()


async def test_a_collector_that_is_gone_hurts_nobody(caplog):
    async with asyncio.timeout(15):
        async with fake_replica() as replica, router_over(replica, tracing__endpoint="http://127.0.0.1:9") as up:
            assert (await posted(up.url, SECRET)).status == 200
    assert "secret" not in caplog.text


async def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "router.tracing", None)
    async with fake_replica() as replica:
        with pytest.raises(ConfigError, match=r"prefix-router\[otel\]"):
            async with router_over(replica, **ON):
                pass
