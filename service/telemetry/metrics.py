"""The Prometheus metrics of the service, and the events that they count.

docs/reference/metrics.md lists the metric families; names and units follow
https://prometheus.io/docs/practices/naming. Label values are bounded: path templates, names of
served models, and problem codes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from eulerlora.sampling.adaptive import ROUNDS
from eulerlora_client.contract.answers import Disposition, ModelShift, Prediction
from eulerlora_client.contract.problems import SENT_BY_SERVICE

ClientClass = Literal["anonymous", "keyed"]
"""The class of a client in the metrics, which do not contain names."""

CLIENT_CLOSED_REQUEST = 499  # the status that nginx logs for a disconnected client
READY_HELP = "1 while the service is ready, otherwise 0."
DURATIONS_S = (.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30)  # fmt: skip
AUTO_SAMPLES = (1, *ROUNDS)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BODY_BYTES = (0, 1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7)
ENTROPIES_NATS = (
    .01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 7,
)  # fmt: skip
INFORMATION_NATS = (.0001, .0003, .001, .003, .01, .02, .03, .05, .1, .2, .3, .5, 1, 2)  # fmt: skip
PROBABILITIES = (.02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98, .99, .999, 1)  # fmt: skip
PROBLEM_CODES = frozenset(problem.code for problem in SENT_BY_SERVICE)
OTHER = "other"
OPENMETRICS = "application/openmetrics-text"
CACHE_S = 1.0
"""Age up to which a scrape gets the text of an earlier one, which takes 13 ms to write."""


@dataclass(frozen=True)
class BatchRun:
    """A completed batch: a model, its rows and items, and the run time of the whole batch."""

    model: str
    rows: int
    items: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """Seconds of the stages of a prediction: decoding, queue, and its batch."""

    decode_s: float
    queue_s: float
    model_s: float


@dataclass(frozen=True)
class CompletedPrediction:
    """A prediction, and its disposition if a triage policy was applied.

    at_ns: completion time in nanoseconds since 1970.
    """

    prediction: Prediction
    timing: Timing
    disposition: Disposition | None
    at_ns: int


@dataclass(frozen=True)
class CompletedRequest:
    """A completed HTTP request.

    method: a known method or `other`. route: a path template. problem: the code of the problem in
    the response, if any. body_bytes: received bytes of the body. client: whether the request had a
    valid key.
    """

    method: str
    route: str
    status: int
    problem: str | None
    duration_s: float
    body_bytes: int
    client: ClientClass = "anonymous"


@dataclass(frozen=True)
class Gauges:
    """Functions that return current values; called at every scrape.

    revisions, precisions: of the served models by name. shift: the states of their shift
    monitors; a model without thresholds has none.
    """

    ready: Callable[[], bool]
    queue_rows: Callable[[], int]
    queue_items: Callable[[], int]
    revisions: Callable[[], Mapping[str, str]]
    precisions: Callable[[], Mapping[str, str]]
    shift: Callable[[], Mapping[str, ModelShift]]


class PredictionMetrics:
    """Metrics of predictions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        by_model, by_mode = ("model",), ("model", "mode")
        self._predictions = counter("eulerlora_predictions", "Predictions.", (*by_mode, "client"))
        self._dispositions = counter(
            "eulerlora_dispositions", "Dispositions of the triage policy.",
            (*by_model, "disposition"),
        )  # fmt: skip
        self._checked = counter(
            "eulerlora_ood_checked", "Images compared with an OOD threshold.", by_mode
        )
        self._ood = counter("eulerlora_ood", "Images flagged as out of distribution.", by_mode)
        self._distance_checked = counter(
            "eulerlora_unfamiliar_checked", "Images compared with a threshold of feature_distance.",
            by_mode,
        )  # fmt: skip
        self._unfamiliar = counter("eulerlora_unfamiliar", "Images flagged as unfamiliar.", by_mode)
        self._entropy = histogram(
            "eulerlora_entropy_nats", "Entropy of the mean prediction.", by_mode,
            buckets=ENTROPIES_NATS,
        )  # fmt: skip
        self._information = histogram(
            "eulerlora_mutual_information_nats", "Mutual information between class and trajectory.",
            by_mode, buckets=INFORMATION_NATS,
        )  # fmt: skip
        self._msp = histogram(
            "eulerlora_msp_ratio", "Probability of the most likely class.", by_mode,
            buckets=PROBABILITIES,
        )  # fmt: skip
        self._auto = histogram(
            "eulerlora_auto_samples",
            "Samples per adapter with samples=auto; 1 for an answer without sampling.",
            by_model, buckets=AUTO_SAMPLES,
        )  # fmt: skip
        self._decode = histogram(
            "eulerlora_decode_seconds", "Time from file to network input.", by_model,
            buckets=DURATIONS_S,
        )  # fmt: skip
        self._queue = histogram(
            "eulerlora_queue_wait_seconds",
            "Time of an image from the end of its body to its pass, without decoding.",
            by_model, buckets=DURATIONS_S,
        )  # fmt: skip
        self._model = histogram(
            "eulerlora_model_seconds", "Run time of the batch of an image.", by_model,
            buckets=DURATIONS_S,
        )  # fmt: skip

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
        if body.is_auto:
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
            "eulerlora_shift_evidence", "Evidence for a shift (log10); see docs/how-to/site.md.",
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
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        registry.register(GaugeCollector(gauges))
        self._revisions = gauges.revisions
        self._predictions = PredictionMetrics(registry)
        self.exposition = Expositions(registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._refusals = counter(
            "eulerlora_refusals", "Problems in responses, by code.", ("reason",)
        )
        for reason in PROBLEM_CODES:
            self._refusals.labels(reason=reason)  # 0, so that the first problem is an increase
        self._requests = counter(
            "eulerlora_requests", "Completed HTTP requests; 499 for a disconnected client.",
            ("method", "route", "status", "client"),
        )  # fmt: skip
        self._duration = histogram(
            "eulerlora_request_duration_seconds", "Time from headers to the end of the response.",
            ("method", "route"), buckets=DURATIONS_S,
        )  # fmt: skip
        self._body = histogram(
            "eulerlora_request_body_bytes", "Received bytes of a request body.", ("route",),
            buckets=BODY_BYTES,
        )  # fmt: skip
        self._rows = histogram("eulerlora_batch_rows", "Rows of a batch.", ("model",), buckets=ROWS)
        self._items = histogram(
            "eulerlora_batch_questions", "Images in a batch.", ("model",), buckets=ROWS
        )
        self._seconds = histogram(
            "eulerlora_batch_seconds", "Run time of a batch.", ("model",), buckets=DURATIONS_S
        )

    def count_request(self, request: CompletedRequest) -> None:
        """Counts a completed request and the problem of its response."""
        method, route = request.method, request.route
        self._requests.labels(
            method=method, route=route, status=str(request.status), client=request.client
        ).inc()
        self._duration.labels(method=method, route=route).observe(request.duration_s)
        self._body.labels(route=route).observe(request.body_bytes)
        if request.problem is not None:
            self.count_problem(request.problem)

    def count_problem(self, code: str) -> None:
        """Counts a problem that is not the response to a whole request."""
        self._refusals.labels(reason=code if code in PROBLEM_CODES else OTHER).inc()

    def count_batch(self, run: BatchRun) -> None:
        """Counts a batch; called from the worker threads."""
        model = self._model_label(run.model)
        self._rows.labels(model=model).observe(run.rows)
        self._items.labels(model=model).observe(run.items)
        self._seconds.labels(model=model).observe(run.seconds)

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
