"""What the service counts and measures, for Prometheus.

Label values are bounded: routes are templates, models are those served, reasons are problem codes.
"""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from eulerlora_client.contract.predictions import Prediction
from service.telemetry.events import BatchRun, Gauges, RequestOutcome, Timing
from service.telemetry.metric_families import (
    REASONS,
    BatchMetrics,
    GaugeCollector,
    PredictionMetrics,
    RequestMetrics,
)

OTHER = "other"


class Metrics:
    """The metrics of one application, in a registry of their own."""

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

    def requested(self, outcome: RequestOutcome) -> None:
        """Counts a request that has ended."""
        self._requests.add(outcome)
        if outcome.problem is not None:
            self.refused(outcome.problem)

    def refused(self, reason: str) -> None:
        """Counts a problem by its code; only for what no request was answered with as a whole."""
        known = reason if reason in REASONS else OTHER
        self._requests.refusals.labels(reason=known).inc()

    def batch_ran(self, run: BatchRun) -> None:
        """Counts a batch; called from the engine's thread."""
        self._batches.add(self._served(run.model), run)

    def answered(self, body: Prediction, timing: Timing) -> None:
        """Counts a prediction."""
        self._predictions.add(self._served(body.model), body, timing)

    def _served(self, model: str) -> str:
        return model if model in self._revisions() else OTHER
