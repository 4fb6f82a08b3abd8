"""The Prometheus metrics of the service.

Label values are bounded: path templates, names of served models, and problem codes.
"""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from eulerlora_client.contract.predictions import Prediction
from service.telemetry.events import BatchRun, CompletedRequest, Gauges, Timing
from service.telemetry.metric_families import (
    REASONS,
    BatchMetrics,
    GaugeCollector,
    PredictionMetrics,
    RequestMetrics,
)

OTHER = "other"


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

    def count_prediction(self, body: Prediction, timing: Timing) -> None:
        """Counts a prediction."""
        self._predictions.add(self._model_label(body.model), body, timing)

    def _model_label(self, model: str) -> str:
        return model if model in self._revisions() else OTHER
