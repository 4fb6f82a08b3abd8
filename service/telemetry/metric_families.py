"""The metric families: names, labels and buckets. docs/metrics.md lists them.

Names and units follow https://prometheus.io/docs/practices/naming.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from eulerlora.sampling.adaptive import ROUNDS as AUTO_SAMPLES
from eulerlora_client.contract.problems import SENT_BY_SERVICE
from service.telemetry.events import (
    BatchRun,
    ClientClass,
    CompletedPrediction,
    CompletedRequest,
    Gauges,
)

READY_HELP = "1 while the service is ready, otherwise 0."
DURATIONS_S = (.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BODY_BYTES = (0, 1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7)
ENTROPIES_NATS = (
    .01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 7,
)  # fmt: skip
INFORMATION_NATS = (.0001, .0003, .001, .003, .01, .02, .03, .05, .1, .2, .3, .5, 1, 2)  # fmt: skip
PROBABILITIES = (.02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98, .99, .999, 1)  # fmt: skip


class RequestMetrics:
    """Metrics of HTTP requests and problems."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refusals = Counter(
            "eulerlora_refusals", "Problems in responses, by code.", ["reason"],
            registry=registry,
        )  # fmt: skip
        for reason in REASONS:
            self.refusals.labels(reason=reason)  # 0, so that the first problem is an increase
        self._requests = Counter(
            "eulerlora_requests", "Completed HTTP requests; 499 for a disconnected client.",
            ["method", "route", "status", "client"], registry=registry,
        )  # fmt: skip
        self._duration = Histogram(
            "eulerlora_request_duration_seconds", "Time from headers to the end of the response.",
            ["method", "route"], buckets=DURATIONS_S, registry=registry,
        )  # fmt: skip
        self._body = Histogram(
            "eulerlora_request_body_bytes", "Received bytes of a request body.",
            ["route"], buckets=BODY_BYTES, registry=registry,
        )  # fmt: skip

    def add(self, request: CompletedRequest) -> None:
        method, route = request.method, request.route
        self._requests.labels(
            method=method, route=route, status=str(request.status), client=request.client
        ).inc()
        self._duration.labels(method=method, route=route).observe(request.duration_s)
        self._body.labels(route=route).observe(request.body_bytes)


class BatchMetrics:
    """Metrics of batches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, help_text, ["model"], buckets=buckets, registry=registry)

        self._rows = histogram("eulerlora_batch_rows", "Rows of a batch.", ROWS)
        self._items = histogram("eulerlora_batch_questions", "Images in a batch.", ROWS)
        self._seconds = histogram("eulerlora_batch_seconds", "Run time of a batch.", DURATIONS_S)

    def add(self, model: str, run: BatchRun) -> None:
        self._rows.labels(model=model).observe(run.rows)
        self._items.labels(model=model).observe(run.items)
        self._seconds.labels(model=model).observe(run.seconds)


class PredictionMetrics:
    """Metrics of predictions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str) -> Counter:
            return Counter(name, help_text, ["model", "mode"], registry=registry)

        def histogram(
            name: str,
            help_text: str,
            buckets: tuple[float, ...],
            labels: tuple[str, ...] = ("model",),
        ) -> Histogram:
            return Histogram(name, help_text, labels, buckets=buckets, registry=registry)

        by_mode = ("model", "mode")
        self._adaptive = Counter(
            "eulerlora_adaptive", "Predictions with samples=auto, by whether they were sampled.",
            ["model", "sampled"], registry=registry,
        )  # fmt: skip
        self._predictions = Counter(
            "eulerlora_predictions", "Predictions.", ["model", "mode", "client"], registry=registry
        )
        self._dispositions = Counter(
            "eulerlora_dispositions", "Dispositions of the triage policy.",
            ["model", "disposition"], registry=registry,
        )  # fmt: skip
        self._checked = counter("eulerlora_ood_checked", "Images compared with an OOD threshold.")
        self._ood = counter("eulerlora_ood", "Images flagged as out of distribution.")
        self._distance_checked = counter(
            "eulerlora_unfamiliar_checked", "Images compared with a threshold of feature_distance."
        )
        self._unfamiliar = counter("eulerlora_unfamiliar", "Images flagged as unfamiliar.")
        self._entropy = histogram(
            "eulerlora_entropy_nats", "Entropy of the mean prediction.", ENTROPIES_NATS, by_mode
        )
        self._information = histogram(
            "eulerlora_mutual_information_nats", "Mutual information between class and trajectory.",
            INFORMATION_NATS, by_mode,
        )  # fmt: skip
        self._msp = histogram(
            "eulerlora_msp_ratio", "Probability of the most likely class.", PROBABILITIES, by_mode
        )
        self._auto = histogram(
            "eulerlora_auto_samples", "Samples per adapter drawn with samples=auto.", AUTO_SAMPLES
        )
        self._decode = histogram(
            "eulerlora_decode_seconds",
            "Time from file to network input.",
            DURATIONS_S,
        )
        self._queue = histogram(
            "eulerlora_queue_wait_seconds",
            "Time of an image from the end of its body to its pass, without decoding.",
            DURATIONS_S,
        )
        self._model = histogram(
            "eulerlora_model_seconds", "Run time of the batch of an image.", DURATIONS_S
        )

    def add(self, model: str, completed: CompletedPrediction, client: ClientClass) -> None:
        body, timing = completed.prediction, completed.timing
        by_mode = {"model": model, "mode": body.mode}
        self._predictions.labels(**by_mode, client=client).inc()
        if completed.disposition is not None:
            self._dispositions.labels(model=model, disposition=completed.disposition).inc()
        if body.ood is not None:
            self._checked.labels(**by_mode).inc()
            self._ood.labels(**by_mode).inc(body.ood)
        if body.unfamiliar is not None:
            self._distance_checked.labels(**by_mode).inc()
            self._unfamiliar.labels(**by_mode).inc(body.unfamiliar)
        self._entropy.labels(**by_mode).observe(body.entropy)
        self._information.labels(**by_mode).observe(body.mutual_information)
        self._msp.labels(**by_mode).observe(body.msp)
        if body.sampled is not None:
            self._adaptive.labels(model=model, sampled=str(body.sampled).lower()).inc()
            self._auto.labels(model=model).observe(body.samples)
        self._decode.labels(model=model).observe(timing.decode_s)
        self._queue.labels(model=model).observe(timing.queue_s)
        self._model.labels(model=model).observe(timing.model_s)


class GaugeCollector(Collector):
    """Current values at the time of a scrape."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges
        yield GaugeMetricFamily("eulerlora_ready", READY_HELP, gauges.ready())
        yield GaugeMetricFamily("eulerlora_queue_rows", "Rows in the queue.", gauges.queue_rows())
        yield GaugeMetricFamily(
            "eulerlora_queue_questions", "Images in the queue.", gauges.queue_items()
        )
        served = InfoMetricFamily("eulerlora_model", "The served models.", labels=["model"])
        precisions = gauges.precisions()
        for model, revision in gauges.revisions().items():
            served.add_metric([model], {"revision": revision, "precision": precisions[model]})
        yield served
        yield from self._shift()

    def _shift(self) -> Iterator[Metric]:
        """Yields the state of every signal; a signal without calibration data has no series."""
        by = ["model", "signal"]
        pictures = CounterMetricFamily(
            "eulerlora_shift_pictures", "Pictures that the shift monitor compared.", labels=by
        )
        evidence = GaugeMetricFamily(
            "eulerlora_shift_evidence", "Evidence for a shift (log10); see monitoring.md.",
            labels=by,
        )  # fmt: skip
        alarm = GaugeMetricFamily(
            "eulerlora_shift_alarm", "1 after the evidence for a shift has reached its limit.",
            labels=by,
        )  # fmt: skip
        for model, shift in self._gauges.shift().items():
            for signal in shift.signals:
                pictures.add_metric([model, signal.name], signal.pictures)
                evidence.add_metric([model, signal.name], signal.evidence)
                alarm.add_metric([model, signal.name], signal.alarm)
        yield from (pictures, evidence, alarm)


REASONS = frozenset(problem.code for problem in SENT_BY_SERVICE)
