"""Spans of requests: attributes, parents, and export to a collector."""

import socket

import pytest
from fastapi import FastAPI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from service.telemetry.metrics import Metrics
from service.telemetry.tracing import TracingMiddleware, exported_traces
from tests.service.observed import GAUGES, SECRET, observed_app
from tests.service.real_server import run_server

HOUR_S = 3600
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(exporter) -> TestClient:
    """A client of a traced app whose spans stay in memory."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return TestClient(traced_app(provider), raise_server_exceptions=False)


def traced_app(provider: TracerProvider) -> FastAPI:
    return observed_app(
        Metrics(lambda: GAUGES),
        lambda app: app.add_middleware(TracingMiddleware, provider=provider),
    )


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_collector_that_does_not_answer_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(1000 * HOUR_S))
        with exported_traces(last_export_s=0.1) as provider:
            TestClient(traced_app(provider)).get("/readyz")


def test_a_request_has_a_span_with_the_conventional_attributes(client, exporter) -> None:
    response = client.post("/predict?seed=1", content=b"x" * 5000)
    span = spans(exporter)["POST /predict"]
    assert span.kind is SpanKind.SERVER
    assert span.parent is None
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "http.request.method": "POST",
        "http.route": "/predict",
        "http.response.status_code": 200,
        "http.request.body.size": 5000,
        "eulerlora.request_id": response.headers["X-Request-ID"],
        "eulerlora.model": "tiny",
        "eulerlora.mode": "stoch",
        "eulerlora.samples": 4,
        "eulerlora.views": 1,
    }


def test_the_stages_of_a_prediction_are_consecutive_child_spans(client, exporter) -> None:
    client.post("/predict", content=b"x")
    by_name = spans(exporter)
    request = by_name["POST /predict"]
    stages = [by_name[name] for name in ("decode", "queue", "model")]
    assert [stage.end_time - stage.start_time for stage in stages] == [
        2_000_000,
        20_000_000,
        2 * 10**8,
    ]
    assert [stage.end_time for stage in stages[:-1]] == [stage.start_time for stage in stages[1:]]
    assert stages[-1].end_time <= request.end_time
    assert {stage.parent.span_id for stage in stages} == {request.context.span_id}


def test_a_span_is_a_child_of_the_span_in_traceparent(client, exporter) -> None:
    client.get("/models/tiny", headers={"traceparent": TRACEPARENT})
    span = spans(exporter)["GET /models/{name}"]
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT


def test_problems_and_exceptions_have_a_code_and_no_exception_event(client, exporter) -> None:
    client.post("/predict", headers={"X-Refuse": "1"})
    client.get("/defect")
    refused, failed = spans(exporter)["POST /predict"], spans(exporter)["GET /defect"]
    assert refused.attributes["error.type"] == "not_authenticated"
    assert refused.status.status_code is StatusCode.UNSET
    assert failed.attributes["error.type"] == "internal_error"
    assert failed.attributes["http.response.status_code"] == 500
    assert failed.status.status_code is StatusCode.ERROR
    assert SECRET not in failed.to_json()


def test_unknown_paths_and_methods_are_not_recorded(client, exporter) -> None:
    client.request(SECRET.upper(), f"/{SECRET}")
    span = spans(exporter)["HTTP"]
    assert span.attributes["http.request.method"] == "_OTHER"
    assert "http.route" not in span.attributes
    assert SECRET not in span.to_json().lower()


def test_log_records_carry_the_trace(client, records) -> None:
    client.get("/defect", headers={"traceparent": TRACEPARENT})
    assert [record["trace_id"] for record in records()] == [TRACE, TRACE]


def test_spans_reach_the_collector_before_the_provider_closes(monkeypatch) -> None:
    requests: list[ExportTraceServiceRequest] = []

    async def collect(request: Request) -> Response:
        requests.append(ExportTraceServiceRequest.FromString(await request.body()))
        return Response(media_type="application/x-protobuf")

    collector = Starlette(routes=[Route("/v1/traces", collect, methods=["POST"])])
    with run_server(collector) as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        with exported_traces() as provider:
            TestClient(traced_app(provider)).post("/predict", content=b"x")
    (received,) = requests
    (exported,) = received.resource_spans
    attributes = {entry.key: entry.value.string_value for entry in exported.resource.attributes}
    assert attributes["service.name"] == "eulerlora"
    sent = [span for scope in exported.scope_spans for span in scope.spans]
    assert {span.name for span in sent} == {"POST /predict", "decode", "queue", "model"}
    assert len({span.trace_id for span in sent}) == 1


@pytest.mark.parametrize(
    ("variable", "setting"),
    [("OTEL_SERVICE_NAME", "lesions"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=lesions")],
)
def test_the_environment_sets_the_service_name(monkeypatch, variable, setting) -> None:
    monkeypatch.setenv(variable, setting)
    with exported_traces() as provider:
        assert provider.resource.attributes["service.name"] == "lesions"
