"""OpenTelemetry spans of requests, exported over OTLP/HTTP.

The standard OTEL_* environment variables configure the collector, the sampler and the service name.
Import this module only with --trace: the SDK takes time and memory.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eulerlora import __version__
from service.telemetry.logs import current_trace_id
from service.telemetry.records import OTHER, CompletedPrediction, RequestObservation

_NAME = "eulerlora"
_LAST_EXPORT_S = 2.0
"""For the last spans; less than `STOP_MARGIN_S`, which the end of the process has in all."""


@contextmanager
def exported_traces(last_export_s: float = _LAST_EXPORT_S) -> Iterator[TracerProvider]:
    """Yields a provider that exports spans to the collector; exports the last ones on exit.

    The exporter repeats its attempts for as long as OTEL_EXPORTER_OTLP_TIMEOUT for each batch;
    without a collector, the end of the process would wait for them.

    Args:
        last_export_s: After which the exit no longer waits for the last spans.
    """
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield provider
    finally:
        last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(last_export_s)


def _resource() -> Resource:
    """The resource of the spans; the service name comes from OTEL_* or is eulerlora."""
    configured = Resource.create({SERVICE_VERSION: __version__})
    has_name = not str(configured.attributes[SERVICE_NAME]).startswith("unknown_service")
    return configured if has_name else configured.merge(Resource({SERVICE_NAME: _NAME}))


class TracingMiddleware:
    """Creates a span for every request, as a child of the span in its `traceparent` header.

    Must run outside ObservationMiddleware, whose results it reports. Attributes follow the HTTP
    semantic conventions 1.23.
    """

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        self.app = app
        self.tracer = provider.get_tracer(_NAME, __version__)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        parent = propagate.extract(dict(Headers(scope=scope)))
        with self.tracer.start_as_current_span(
            _NAME, parent, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            # Not reset afterwards, for the same reason as the request id.
            current_trace_id.set(f"{span.get_span_context().trace_id:032x}")
            try:
                await self.app(scope, receive, send)
            finally:
                observation: RequestObservation = scope["state"]["observation"]
                span.set_attribute("eulerlora.request_id", scope["state"]["request_id"])
                _describe(span, observation)
                for completed in observation.predictions:
                    _add_stages(self.tracer, span, completed)


def _describe(span: Span, request: RequestObservation) -> None:
    """Sets name, attributes and status of the span of a completed request."""
    assert request.status is not None
    known_method = request.method != OTHER
    verb = request.method if known_method else "HTTP"
    if request.route == OTHER:
        span.update_name(verb)
    else:
        span.update_name(f"{verb} {request.route}")
        span.set_attribute("http.route", request.route)
    span.set_attributes(
        {
            "http.request.method": request.method if known_method else "_OTHER",
            "http.response.status_code": request.status,
            "http.request.body.size": request.body_bytes,
        }
    )
    if request.problem is not None:
        span.set_attribute("error.type", request.problem)
    if request.status >= 500:
        span.set_status(StatusCode.ERROR)
    for name, value in request.parameters.items():
        span.set_attribute(f"eulerlora.{name}", value)


def _add_stages(tracer: Tracer, request: Span, completed: CompletedPrediction) -> None:
    """Adds the child spans `decode`, `queue` and `model`.

    Only the durations are measured: the stages are placed back to back before the completion time.
    """
    context = trace.set_span_in_context(request)
    stages = completed.stages_s
    start_ns = completed.at_ns - sum(int(seconds * 1e9) for seconds in stages.values())
    for name, seconds in stages.items():
        span = tracer.start_span(name, context, start_time=start_ns)
        start_ns += int(seconds * 1e9)
        span.end(start_ns)
