"""The Prometheus metrics of the service.

docs/reference/metrics.md lists the metric families; names and units follow
https://prometheus.io/docs/practices/naming. Label values are bounded: path templates, names of
served models, and problem codes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
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

from eulerlora_contract.problems import SENT_BY_SERVICE
from eulerlora_contract.sampling import AUTO_ROUNDS
from service.telemetry.records import CompletedPrediction, RequestObservation, ShadowResult
from service.telemetry.stderr import dropped_lines

_ClientClass = Literal["anonymous", "keyed"]
"""The class of a client in the metrics, which do not contain names."""
_ShadowOutcome = Literal["compared", "dropped", "failed"]

_DURATIONS_S = (.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30)  # fmt: skip
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BODY_BYTES = (0, 1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7)
_ENTROPIES_NATS = (
    .01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 7,
)  # fmt: skip
_INFORMATION_NATS = (
    .0001, .0003, .001, .003, .01, .02, .03, .05, .1, .2, .3, .5, 1, 2,
)  # fmt: skip
_PROBABILITIES = (.02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98, .99, .999, 1)  # fmt: skip
_OPENMETRICS = "application/openmetrics-text"
_CACHE_S = 1.0
"""Age up to which a scrape gets the text of an earlier one, which takes 13 ms to write."""

_Labels = tuple[str, ...]
_BY_MODEL, _BY_MODE = ("model",), ("model", "mode")
_COUNTERS: Mapping[str, tuple[str, _Labels]] = {
    "predictions": ("Predictions.", (*_BY_MODE, "client")),
    "ood_checked": ("Images compared with an OOD threshold.", _BY_MODE),
    "ood": ("Images flagged as out of distribution.", _BY_MODE),
    "unfamiliar_checked": ("Images compared with a threshold of feature_distance.", _BY_MODE),
    "unfamiliar": ("Images flagged as unfamiliar.", _BY_MODE),
    "refusals": ("Problems in responses, by code.", ("reason",)),
    "shadow_answers": ("Answers for the shadow to compare, by outcome.", (*_BY_MODEL, "outcome")),
    "shadow_fields": (
        "Fields of compared answers, by what the shadow says instead.",
        (*_BY_MODEL, "field", "result"),
    ),
    "requests": (
        "Completed HTTP requests; 499 for a disconnected client.",
        ("method", "route", "status", "client"),
    ),
}
"""Description and labels by name, without its prefix."""

_HISTOGRAMS: Mapping[str, tuple[str, _Labels, tuple[float, ...]]] = {
    "entropy_nats": ("Entropy of the mean prediction.", _BY_MODE, _ENTROPIES_NATS),
    "mutual_information_nats": (
        "Mutual information between class and trajectory.", _BY_MODE, _INFORMATION_NATS,
    ),
    "msp_ratio": ("Probability of the most likely class.", _BY_MODE, _PROBABILITIES),
    "auto_samples": (
        "Samples per adapter with samples=auto.", _BY_MODEL, AUTO_ROUNDS,
    ),
    "decode_seconds": ("Time from file to network input.", _BY_MODEL, _DURATIONS_S),
    "queue_wait_seconds": (
        "Time of an image from the end of its body to its pass, without decoding.",
        _BY_MODEL, _DURATIONS_S,
    ),
    "model_seconds": ("Run time of the batch of an image.", _BY_MODEL, _DURATIONS_S),
    "request_duration_seconds": (
        "Time from headers to the end of the response.", ("method", "route"), _DURATIONS_S,
    ),
    "request_body_bytes": ("Received bytes of a request body.", ("route",), _BODY_BYTES),
    "batch_rows": ("Rows of a batch.", _BY_MODEL, _ROWS),
    "batch_questions": ("Images in a batch.", _BY_MODEL, _ROWS),
    "batch_seconds": ("Run time of a batch.", _BY_MODEL, _DURATIONS_S),
}  # fmt: skip
"""Description, labels and buckets by name, without its prefix."""


@dataclass(frozen=True)
class Gauges:
    """Current values.

    Attributes:
        models: Revision, precision and runtime of the served models, by name.
        shadow: Likewise, of the shadow, by the name of the model that it is compared with.
        sandbox: True for every mechanism in force that restricts the decoders, by its name.
    """

    ready: bool
    last_reload_successful: bool
    queue_rows: int
    queue_items: int
    models: Mapping[str, dict[str, str]]
    shadow: Mapping[str, dict[str, str]]
    sandbox: Mapping[str, bool]


class _GaugeCollector(Collector):
    """Current values at the time of a scrape, and the lines of the log that were dropped."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges()
        yield GaugeMetricFamily(
            "eulerlora_ready", "1 while the service is ready, otherwise 0.", gauges.ready
        )
        yield GaugeMetricFamily(
            "eulerlora_last_reload_successful",
            "0 after a refused reload of a model, and while one takes over a minute; otherwise 1.",
            gauges.last_reload_successful,
        )
        yield GaugeMetricFamily("eulerlora_queue_rows", "Rows in the queue.", gauges.queue_rows)
        yield GaugeMetricFamily(
            "eulerlora_queue_questions", "Images in the queue.", gauges.queue_items
        )
        for name, text, models in (
            ("eulerlora_model", "The served models.", gauges.models),
            (
                "eulerlora_shadow",
                "The shadow of a served model.",
                gauges.shadow,
            ),
        ):
            described = InfoMetricFamily(name, text, labels=["model"])
            for model, properties in models.items():
                described.add_metric([model], properties)
            yield described
        sandbox = GaugeMetricFamily(
            "eulerlora_decoder_sandbox",
            "1 for a mechanism in force that restricts the decoders of images, otherwise 0.",
            labels=["mechanism"],
        )
        for mechanism, in_force in gauges.sandbox.items():
            sandbox.add_metric([mechanism], in_force)
        yield sandbox
        text = "Lines of the log that were dropped."
        yield CounterMetricFamily("eulerlora_log_lines_dropped", text, dropped_lines())


@dataclass(frozen=True)
class Exposition:
    """The text of all metrics.

    Attributes:
        written_s: On the monotonic clock.
    """

    content: bytes
    content_type: str
    written_s: float


class Metrics:
    """The metrics of one application, in a separate registry.

    Args:
        gauges: Called at every scrape.
        now: A clock in seconds.
    """

    def __init__(
        self, gauges: Callable[[], Gauges], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self.registry = registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        registry.register(_GaugeCollector(gauges))
        self._gauges = gauges
        self._expositions: dict[str, Exposition] = {}  # the latest, by content type
        self._counters = {
            name: Counter(f"eulerlora_{name}", text, labels, registry=registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"eulerlora_{name}", text, labels, registry=registry, buckets=buckets)
            for name, (text, labels, buckets) in _HISTOGRAMS.items()
        }
        for problem in SENT_BY_SERVICE:
            self._count(
                "refusals", 0, reason=problem.code
            )  # so that the first problem is an increase

    def exposition(self, accept: str) -> Exposition:
        """All metrics in the text format that an Accept header asks for.

        It is that of Prometheus or OpenMetrics; the text is at most `_CACHE_S` old.
        """
        encoder, content_type = _encoder(accept)
        cached = self._expositions.get(content_type)
        now_s = self._now()
        if cached is None or now_s - cached.written_s >= _CACHE_S:
            self._start_rare_counters()
            cached = Exposition(encoder(self.registry), content_type, now_s)
            self._expositions[content_type] = cached
        return cached

    def _start_rare_counters(self) -> None:
        """Creates those of the present models, at 0, so that the first event is an increase."""
        gauges = self._gauges()
        for model in gauges.shadow:
            for outcome in get_args(_ShadowOutcome):
                self._count("shadow_answers", 0, model=model, outcome=outcome)
            for result in ("same", "less_urgent", "more_urgent"):
                self._count("shadow_fields", 0, model=model, field="disposition", result=result)

    def count_request(self, request: RequestObservation) -> None:
        """Counts a completed request, its images, and the problems of its response."""
        client: _ClientClass = "anonymous" if request.key_name is None else "keyed"
        for completed in request.predictions:
            self.count_prediction(completed, client)
        by_route = {"method": request.method, "route": request.route}
        self._count("requests", **by_route, status=str(request.status), client=client)
        self._observe("request_duration_seconds", request.duration_s, **by_route)
        self._observe("request_body_bytes", request.body_bytes, route=request.route)
        for code in (*filter(None, [request.problem]), *request.image_problems):
            self.count_problem(code)

    def count_problem(self, code: str) -> None:
        """Also called for a problem that never reaches the application."""
        self._count("refusals", reason=code)

    def count_batch(self, model: str, rows: int, items: int, seconds: float) -> None:
        """Counts a completed batch, with its run time; called from the worker threads."""
        self._observe("batch_rows", rows, model=model)
        self._observe("batch_questions", items, model=model)
        self._observe("batch_seconds", seconds, model=model)

    def count_shadow(
        self,
        model: str,
        outcome: _ShadowOutcome,
        results: Mapping[str, ShadowResult] = MappingProxyType({}),
    ) -> None:
        """Counts an answer for the shadow; `results` has those of a comparison by field."""
        self._count("shadow_answers", model=model, outcome=outcome)
        for name, result in results.items():
            self._count("shadow_fields", model=model, field=name, result=result)

    def count_prediction(
        self, completed: CompletedPrediction, client: _ClientClass = "anonymous"
    ) -> None:
        """Counts an image; of features only the times of the stages."""
        body = completed.prediction
        by_model = {"model": completed.model}
        self._observe("decode_seconds", completed.decode_s, **by_model)
        self._observe("queue_wait_seconds", completed.queue_s, **by_model)
        self._observe("model_seconds", completed.model_s, **by_model)
        if body is None:
            return
        by_mode = {**by_model, "mode": body.mode}
        self._count("predictions", **by_mode, client=client)
        for name, flag in (("ood", body.ood), ("unfamiliar", body.unfamiliar)):
            if flag is not None:
                self._count(f"{name}_checked", **by_mode)
                self._count(name, flag, **by_mode)
        self._observe("entropy_nats", body.entropy, **by_mode)
        self._observe("mutual_information_nats", body.mutual_information, **by_mode)
        self._observe("msp_ratio", body.msp, **by_mode)
        if body.is_auto:
            self._observe("auto_samples", body.samples, **by_model)

    def _count(self, counter: str, amount: int = 1, /, **labels: str) -> None:
        self._counters[counter].labels(**labels).inc(amount)

    def _observe(self, histogram: str, value: float, /, **labels: str) -> None:
        self._histograms[histogram].labels(**labels).observe(value)


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """One of two encoders with its content type.

    prometheus_client repeats the requested version in the content type; a cache of all versions
    would have no limit.
    """
    try:
        _, requested = choose_encoder(accept)
    except TypeError:  # prometheus_client fails on a malformed version in the Accept header
        requested = ""
    return choose_encoder(_OPENMETRICS if requested.startswith(_OPENMETRICS) else "")
