"""The Prometheus metrics of the service.

Label values are bounded: path templates, names of served models, and problem codes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder

from service.telemetry.events import (
    BatchRun,
    ClientClass,
    CompletedPrediction,
    CompletedRequest,
    Gauges,
)
from service.telemetry.metric_families import (
    READY_HELP,
    REASONS,
    BatchMetrics,
    GaugeCollector,
    PredictionMetrics,
    RequestMetrics,
)

OTHER = "other"
OPENMETRICS = "application/openmetrics-text"
CACHE_S = 1.0
"""Age up to which a scrape gets the text of an earlier one, which takes 13 ms to write."""


@dataclass(frozen=True)
class Exposition:
    """The text of all metrics, its content type, and the monotonic time when it was written."""

    content: bytes
    content_type: str
    written_s: float


class Expositions:
    """Returns all metrics of a registry in the text format of Prometheus, or as OpenMetrics.

    The text is at most `CACHE_S` old.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._latest: dict[str, Exposition] = {}  # by content type

    def __call__(self, accept: str) -> Exposition:
        """Returns the text in the format that an Accept header asks for."""
        encoder, content_type = _encoder(accept)
        cached = self._latest.get(content_type)
        now_s = time.monotonic()
        if cached is None or now_s - cached.written_s >= CACHE_S:
            cached = Exposition(encoder(self._registry), content_type, now_s)
            self._latest[content_type] = cached
        return cached


def start_metrics() -> Expositions:
    """Returns the metrics of a process whose models are being loaded."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    Gauge("eulerlora_ready", READY_HELP, registry=registry).set(0)
    return Expositions(registry)


class Metrics:
    """The metrics of one application, in a separate registry."""

    def __init__(self, gauges: Gauges) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        registry.register(GaugeCollector(gauges))
        self._revisions = gauges.revisions
        self._requests = RequestMetrics(registry)
        self._batches = BatchMetrics(registry)
        self._predictions = PredictionMetrics(registry)
        self.exposition = Expositions(registry)

    def count_request(self, request: CompletedRequest) -> None:
        """Counts a completed request and the problem of its response."""
        self._requests.add(request)
        if request.problem is not None:
            self.count_problem(request.problem)

    def count_problem(self, code: str) -> None:
        """Counts a problem that is not the response to a whole request."""
        self._requests.refusals.labels(reason=code if code in REASONS else OTHER).inc()

    def count_batch(self, run: BatchRun) -> None:
        """Counts a batch; called from the worker threads."""
        self._batches.add(self._model_label(run.model), run)

    def count_prediction(
        self, completed: CompletedPrediction, client: ClientClass = "anonymous"
    ) -> None:
        """Counts a prediction for a client."""
        model = self._model_label(completed.prediction.model)
        self._predictions.add(model, completed, client)

    def _model_label(self, model: str) -> str:
        return model if model in self._revisions() else OTHER


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Returns one of two encoders with its content type.

    prometheus_client repeats the requested version in the content type; a cache of all versions
    would have no limit.
    """
    try:
        _, requested = choose_encoder(accept)
    except TypeError:  # prometheus_client fails on a malformed version in the Accept header
        requested = ""
    return choose_encoder(OPENMETRICS if requested.startswith(OPENMETRICS) else "")
