"""A span for every request, sent to an OpenTelemetry collector over OTLP/HTTP.

The standard OTEL_* environment variables set the collector's address, the sampler, the service's
name and the rest. To be imported only where tracing is wanted: the SDK takes time and memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.telemetry.logs import current_trace_id
from service.telemetry.metrics import OTHER
from service.telemetry.observation import Answer, Observation

NAME = "eulerlora"


@contextmanager
def exported_traces() -> Iterator[TracerProvider]:
    """A provider whose spans go to the collector; the last ones on the way out."""
    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield provider
    finally:
        provider.shutdown()


def resource() -> Resource:
    """What the spans come from: this version of the service, named by OTEL_* or else eulerlora."""
    found = Resource.create({SERVICE_VERSION: version(NAME)})
    named = not str(found.attributes[SERVICE_NAME]).startswith("unknown_service")
    return found if named else found.merge(Resource({SERVICE_NAME: NAME}))


class TracingMiddleware:
    """Has a span for every request, a child of the one that its `traceparent` names.

    Wants to be outside `ObservationMiddleware`, whose findings it tells, and inside
    `RequestIdMiddleware`. Attributes by the HTTP semantic conventions 1.23 and later.
    """

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        self.app = app
        self.tracer = provider.get_tracer(NAME, version(NAME))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        parent = propagate.extract(dict(Headers(scope=scope)))
        with self.tracer.start_as_current_span(
            NAME, parent, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            current_trace_id.set(f"{span.get_span_context().trace_id:032x}")  # as the request id
            try:
                await self.app(scope, receive, send)
            finally:
                observation: Observation = scope["state"]["observation"]
                describe(span, observation)
                for answer in observation.answers:
                    add_stages(self.tracer, span, answer)


def describe(span: Span, observation: Observation) -> None:
    """Gives a request's span its name, attributes and status."""
    outcome = observation.outcome
    assert outcome is not None
    known = outcome.method != OTHER
    verb = outcome.method if known else "HTTP"
    if outcome.route == OTHER:
        span.update_name(verb)
    else:
        span.update_name(f"{verb} {outcome.route}")
        span.set_attribute("http.route", outcome.route)
    span.set_attributes(
        {
            "http.request.method": outcome.method if known else "_OTHER",
            "http.response.status_code": outcome.status,
            "http.request.body.size": outcome.body_bytes,
            "eulerlora.request_id": observation.scope["state"].get("request_id", ""),
        }
    )
    if outcome.problem is not None:
        span.set_attribute("error.type", outcome.problem)
    if outcome.status >= 500:
        span.set_status(StatusCode.ERROR)
    for answer in observation.answers[:1]:
        body = answer.body
        span.set_attribute("eulerlora.model", body.model)
        span.set_attribute("eulerlora.mode", body.mode)
        span.set_attribute("eulerlora.samples", body.samples)


def add_stages(tracer: Tracer, request: Span, answer: Answer) -> None:
    """Adds the children `decode`, `queue` and `model`, laid end to end before the answer.

    Only their durations were measured; the moments between them are too short to matter.
    """
    context = trace.set_span_in_context(request)
    timing = answer.timing
    durations = {"decode": timing.decode_s, "queue": timing.queue_s, "model": timing.model_s}
    at_ns = answer.at_ns - sum(int(each * 1e9) for each in durations.values())
    for name, seconds in durations.items():
        span = tracer.start_span(name, context, start_time=at_ns)
        at_ns += int(seconds * 1e9)
        span.end(at_ns)
