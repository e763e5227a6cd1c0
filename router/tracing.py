"""One OpenTelemetry span per request, continued from the client's W3C `traceparent` and passed on to the replica.

Attributes follow the semantic conventions for generative AI (opentelemetry-semantic-conventions 0.66b2), and `router.*`
say what was decided and what the cache gave. The one rule: names and numbers only, no text, user or key. Off, this
module is not imported and `traceparent` goes through as any header does. Needs the extra `otel`.
"""

import os
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router import __version__
from router.errors import RequestError
from router.http.messages import Call, Headers, Reply
from router.openai import ROUTES
from router.outcome import Outcome
from router.placing import Placed

Serve = Callable[[Call, Reply], Awaitable[None]]

_TRIED_S = 4.0  # for a batch, retries included: a collector that is gone must not keep the router from ending
_W3C = TraceContextTextMapPropagator()
_CONTEXT = (b"traceparent", b"tracestate")
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


class Tracing:
    """Serves requests inside spans; told of what was decided and how it ended, it says so on the current one."""

    def __init__(self, provider: TracerProvider, serve: Serve) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("prefix-router", __version__)
        self._serve = serve

    def close(self) -> None:
        """Send what is left; may take seconds."""
        self._provider.shutdown()

    async def serve(self, call: Call, reply: Reply) -> None:
        """Serve one call; the replica sees this span as its parent."""
        route = call.path if call.path in ROUTES else ""
        method = call.method.decode("latin-1") if call.method.isalpha() and len(call.method) < 16 else "_OTHER"
        attributes = {"http.request.method": method, **({"http.route": route} if route else {})}
        with self._tracer.start_as_current_span(
            f"{method} {route}".rstrip(),
            context=_W3C.extract(_carrier(call.headers)),
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,  # its text may hold anything
        ):
            carrier: dict[str, str] = {}
            _W3C.inject(carrier)
            told = [(name.encode(), value.encode("latin-1")) for name, value in carrier.items()]
            kept = [pair for pair in call.headers if pair[0].lower() not in _CONTEXT]
            await self._serve(call.with_headers(kept + told), reply)

    def placed(self, placed: Placed) -> None:
        """The first choice was made."""
        span = trace.get_current_span()
        if span.is_recording():
            choice = placed.choice
            span.add_event("placed", {"router.replica": choice.replica, "router.reason": choice.reason})

    def ended(self, placed: Placed, outcome: Outcome) -> None:
        """The request has ended, with whatever outcome."""
        span = trace.get_current_span()
        if not span.is_recording():
            return
        known = {name: value for name, value in _attributes(placed, outcome).items() if value is not None}
        span.set_attributes(known)
        if outcome.status >= 500 or outcome.outcome in ("cut", "given-up", "error-event"):
            span.set_attribute("error.type", outcome.outcome if outcome.status < 500 else str(outcome.status))
            span.set_status(Status(StatusCode.ERROR))

    def refused(self, error: RequestError) -> None:
        """The router answered with an error of its own."""
        span = trace.get_current_span()
        span.set_attributes({"http.response.status_code": error.status, "error.type": error.code or error.kind})
        if error.status >= 500:
            span.set_status(Status(StatusCode.ERROR))


def _attributes(placed: Placed, outcome: Outcome) -> dict[str, str | int | float | None]:
    request = placed.request
    return {
        "http.response.status_code": outcome.status,
        "gen_ai.operation.name": _OPERATIONS.get(outcome.route),
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": outcome.model or None,
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.output_tokens": outcome.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.delivered_tokens,
        "gen_ai.response.time_to_first_chunk": outcome.ttft_s,
        "router.tenant": request.tenant or None,
        "router.replica": outcome.replica,
        "router.reason": outcome.reason,
        "router.outcome": outcome.outcome,
        "router.retries": outcome.retries,
        "router.tokens_basis": outcome.basis,
        "router.available_tokens": outcome.available_tokens,
        "router.predicted_tokens": outcome.predicted_tokens,
        "router.delivered_tokens": outcome.delivered_tokens,
        "router.in_flight": placed.chosen.in_flight,
        "router.pending_prefill_tokens": placed.chosen.pending_prefill_tokens,
    }


def _carrier(headers: Headers) -> dict[str, str]:
    """The trace context of a call; two `traceparent` are none (W3C Trace Context §3.2.1)."""
    parents = [value for name, value in headers if name.lower() == b"traceparent"]
    if len(parents) != 1:
        return {}
    states = [value.decode("latin-1") for name, value in headers if name.lower() == b"tracestate"]
    return {"traceparent": parents[0].decode("latin-1"), "tracestate": ",".join(states)}


def exporting(endpoint: str) -> TracerProvider:
    """Spans go to a collector over OTLP/HTTP. `OTEL_*` variables hold for sampling, headers and batches."""
    url = endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "prefix-router"}
    provider = TracerProvider(
        resource=Resource.create({**named, "service.version": __version__}), shutdown_on_exit=False
    )
    timeout_s = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _TRIED_S
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=timeout_s)))
    return provider
