"""Spans of requests: what they tell, whose children they are, and that they reach a collector."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from fastapi import FastAPI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient

from service.telemetry.logs import RequestFilter
from service.telemetry.tracing import TracingMiddleware, exported_traces, resource
from tests.service.observed import SECRET, GaugeValues, observed_app

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
        GaugeValues().metrics(),
        lambda app: app.add_middleware(TracingMiddleware, provider=provider),
    )


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {each.name: each for each in exporter.get_finished_spans()}


def test_a_request_has_a_span_by_the_semantic_conventions(client, exporter) -> None:
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
    }


def test_a_predictions_stages_are_children_laid_end_to_end(client, exporter) -> None:
    client.post("/predict", content=b"x")
    found = spans(exporter)
    request = found["POST /predict"]
    stages = [found[name] for name in ("decode", "queue", "model")]
    assert [each.end_time - each.start_time for each in stages] == [
        2_000_000,
        20_000_000,
        2 * 10**8,
    ]
    assert [each.end_time for each in stages[:-1]] == [each.start_time for each in stages[1:]]
    assert stages[-1].end_time <= request.end_time
    assert {each.parent.span_id for each in stages} == {request.context.span_id}


def test_a_span_is_the_child_of_the_one_that_the_client_names(client, exporter) -> None:
    client.get("/models/tiny", headers={"traceparent": TRACEPARENT})
    span = spans(exporter)["GET /models/{name}"]
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT


@pytest.mark.parametrize("sent", ["", "x", f"00-{'0' * 32}-{PARENT}-01", "00-" + "a" * 5000])
def test_a_malformed_parent_is_ignored(client, exporter, sent) -> None:
    assert client.get("/models/tiny", headers={"traceparent": sent}).status_code == 200
    assert spans(exporter)["GET /models/{name}"].parent is None


def test_a_refusal_and_a_defect_have_their_codes_and_no_exception(client, exporter) -> None:
    client.post("/predict", headers={"X-Refuse": "1"})
    client.get("/defect")
    refused, failed = spans(exporter)["POST /predict"], spans(exporter)["GET /defect"]
    assert refused.attributes["error.type"] == "not_authenticated"
    assert refused.status.status_code is StatusCode.UNSET
    assert failed.attributes["error.type"] == "internal_error"
    assert failed.attributes["http.response.status_code"] == 500
    assert failed.status.status_code is StatusCode.ERROR
    assert SECRET not in failed.to_json()


def test_what_is_not_served_is_not_told(client, exporter) -> None:
    client.request(SECRET.upper(), f"/{SECRET}")
    span = spans(exporter)["HTTP"]
    assert span.attributes["http.request.method"] == "_OTHER"
    assert "http.route" not in span.attributes
    assert SECRET not in span.to_json().lower()


def test_log_records_carry_the_trace(client, caplog) -> None:
    caplog.handler.addFilter(RequestFilter())
    caplog.set_level(logging.INFO, "service")
    client.get("/defect", headers={"traceparent": TRACEPARENT})
    caplog.handler.filters.clear()
    ours = [each for each in caplog.records if each.name.startswith("service.")]
    assert [each.trace_id for each in ours] == [TRACE, TRACE]


class Collector(HTTPServer):
    """An OTLP/HTTP collector that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receives)
        self.received: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []


class _Receives(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def test_spans_reach_a_collector_before_the_service_ends(collector, monkeypatch) -> None:
    address = f"http://127.0.0.1:{collector.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    with exported_traces() as provider:
        TestClient(traced_app(provider)).post("/predict", content=b"x")
    (received,) = collector.received
    assert collector.paths == ["/v1/traces"]
    (of_resource,) = received.resource_spans
    attributes = {each.key: each.value.string_value for each in of_resource.resource.attributes}
    assert attributes["service.name"] == "eulerlora"
    sent = [span for scope in of_resource.scope_spans for span in scope.spans]
    assert {each.name for each in sent} == {"POST /predict", "decode", "queue", "model"}
    assert len({each.trace_id for each in sent}) == 1


def test_without_a_collector_requests_are_answered_all_the_same(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # discard: closed
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with exported_traces() as provider:
        client = TestClient(traced_app(provider))
        assert client.post("/predict", content=b"x").status_code == 200


@pytest.mark.parametrize(
    ("variable", "setting"),
    [("OTEL_SERVICE_NAME", "lesions"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=lesions")],
)
def test_the_environment_names_the_service(monkeypatch, variable, setting) -> None:
    monkeypatch.setenv(variable, setting)
    assert resource().attributes["service.name"] == "lesions"


def test_the_sdk_is_not_imported_where_nothing_is_traced() -> None:
    program = (
        "import json, sys; import service.app, service.telemetry.observation; "
        "import service.telemetry.logs; "
        "import service.routes.system; print(json.dumps(sorted(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    imported = json.loads(run.stdout)
    assert "service.telemetry.observation" in imported
    assert not [each for each in imported if each.startswith("opentelemetry.sdk")]
    assert not [each for each in imported if each.startswith("opentelemetry.exporter")]
