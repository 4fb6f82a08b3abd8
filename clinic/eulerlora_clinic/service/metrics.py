"""Metrics of the clinic: dispositions, decisions, diagnoses, and the shift monitors."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import product

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eulerlora_contract.answers import UNDO, Disposition, ModelShift, RecordedDecision
from eulerlora_contract.queries import DecisionRequest


class ClinicMetrics(Collector):
    """Dispositions, decisions and diagnoses, and the shift monitors of the served models.

    Args:
        shift: Returns the states of the shift monitors by name.
    """

    def __init__(
        self, models: Callable[[], Iterable[str]], shift: Callable[[], Mapping[str, ModelShift]]
    ) -> None:
        self._models, self._shift = models, shift
        self._dispositions = _counter(
            "dispositions", "Dispositions of the triage policy.", "disposition"
        )
        self._decisions = _counter(
            "decisions", "Decisions of people on dispositions, by kind.", "kind"
        )
        self._diagnoses = _counter(
            "diagnoses",
            "Confirmed diagnoses, by the disposition that was suggested.",
            "critical",
            "disposition",
        )

    def collect(self) -> Iterator[Metric]:
        for model in self._models():  # at 0, so that the first event is an increase
            for kind in ("accept", "override", UNDO):
                self._decisions.labels(model, kind)
            for critical, disposition in product(("true", "false"), Disposition):
                self._diagnoses.labels(model, critical, disposition)
        for counter in (self._dispositions, self._decisions, self._diagnoses):
            yield from counter.collect()
        by = ["model", "signal"]  # a signal without calibration data has no series
        pictures = CounterMetricFamily(
            "eulerlora_shift_pictures", "Pictures that the shift monitor compared.", labels=by
        )
        evidence = GaugeMetricFamily(
            "eulerlora_shift_evidence", "Evidence for a shift (log10); see clinic/docs/site.md.",
            labels=by,
        )  # fmt: skip
        alarm = GaugeMetricFamily(
            "eulerlora_shift_alarm", "1 after the evidence for a shift has reached its limit.",
            labels=by,
        )  # fmt: skip
        for model, shift in self._shift().items():
            for signal in shift.signals:
                pictures.add_metric([model, signal.name], signal.pictures)
                evidence.add_metric([model, signal.name], signal.evidence)
                alarm.add_metric([model, signal.name], signal.alarm)
        yield from (pictures, evidence, alarm)

    def count_disposition(self, model: str, disposition: Disposition) -> None:
        self._dispositions.labels(model, disposition).inc()

    def count_decision(
        self,
        model: str,
        asked: DecisionRequest,
        decided: RecordedDecision,
        critical: Collection[str],
    ) -> None:
        """Counts a decision that was recorded.

        Args:
            model: That of the answer.
            asked: The request.
            decided: The state after it.
            critical: The policy's critical classes.
        """
        if asked.decision is not None:
            other = "override" if decided.is_override else "accept"
            self._decisions.labels(model, UNDO if asked.decision == UNDO else other).inc()
        if asked.diagnosis is not None:
            is_critical = str(asked.diagnosis in critical).lower()
            self._diagnoses.labels(model, is_critical, decided.disposition).inc()


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"eulerlora_{name}", text, ("model", *labels), registry=None)
