"""Metrics of dispositions, decisions and the shift monitors."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from eulerlora_clinic.service.metrics import ClinicMetrics
from eulerlora_contract.answers import Disposition, ModelShift, RecordedDecision, ShiftSignal
from eulerlora_contract.problems import SENT_BY_SERVICE
from eulerlora_contract.queries import DecisionRequest
from service.telemetry.metrics import Metrics
from tests.service.observed import GAUGES, count_everything

ROOT = Path(__file__).parents[3]
SHIFT_SIGNAL = ShiftSignal(
    name="msp", label=None, pictures=80, rate=0.5, expected=0.05, tolerated=0.09, evidence=8.5,
    alarm=True,
)  # fmt: skip
SHIFT = ModelShift(pictures=100, alarm=True, limit=6.3, signals=(SHIFT_SIGNAL,))


def counted_clinic_metrics() -> ClinicMetrics:
    """The metrics of the clinic after one event of each."""
    metrics = ClinicMetrics(lambda: ["tiny"], lambda: {"tiny": SHIFT})
    metrics.count_disposition("tiny", Disposition.URGENT)
    asked = DecisionRequest(request_id="r1", decision="urgent", diagnosis="mel")
    decided = RecordedDecision(
        request_id="r1", disposition=Disposition.URGENT, decision=None, reason=None, diagnosis=None
    )
    metrics.count_decision("tiny", asked, decided, ("mel",))
    return metrics


def value(metrics: ClinicMetrics, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry.get_sample_value(f"eulerlora_{name}", labels)


def test_decisions_and_diagnoses_of_a_model_are_counted_from_zero() -> None:
    metrics = ClinicMetrics(lambda: ["tiny"], dict)
    assert value(metrics, "decisions_total", model="tiny", kind="override") == 0
    of_diagnosis = {"model": "tiny", "critical": "true", "disposition": "routine"}
    assert value(metrics, "diagnoses_total", **of_diagnosis) == 0
    assert value(ClinicMetrics(tuple, dict), "diagnoses_total", **of_diagnosis) is None


def test_dispositions_are_counted() -> None:
    metrics = ClinicMetrics(lambda: ["tiny"], dict)
    for disposition in (Disposition.URGENT, Disposition.URGENT, Disposition.ROUTINE):
        metrics.count_disposition("tiny", disposition)
    counts = {
        name: value(metrics, "dispositions_total", model="tiny", disposition=name)
        for name in Disposition
    }
    assert counts == {
        "urgent": 2, "routine": 1, "refer": None, "retake": None, "unfamiliar": None,
    }  # fmt: skip


def test_the_shift_metrics_have_the_state_of_each_signal() -> None:
    metrics, labels = counted_clinic_metrics(), {"model": "tiny", "signal": "msp"}
    assert value(metrics, "shift_pictures_total", **labels) == 80
    assert value(metrics, "shift_evidence", **labels) == 8.5
    assert value(metrics, "shift_alarm", **labels) == 1
    assert value(metrics, "shift_pictures_total", model="tiny", signal="feature_distance") is None


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(lambda: GAUGES)


def test_the_documentation_lists_exactly_these_metrics(metrics) -> None:
    count_everything(metrics)
    metrics.registry.register(counted_clinic_metrics())
    written = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [line for line in written.splitlines() if line.startswith("| `")] == table(metrics)


def test_every_metric_and_reason_in_an_alert_exists(metrics) -> None:
    count_everything(metrics)
    metrics.registry.register(counted_clinic_metrics())
    names = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus-rules.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert {"alert", "expr", "labels", "annotations"} <= set.intersection(*map(set, alerts))
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    codes = {problem.code for problem in SENT_BY_SERVICE}
    for rule in alerts:
        used = set(re.findall(r"\b(?:eulerlora|process)_\w+|\bup\b", rule["expr"]))
        assert used and used <= names | {"up"}, rule["alert"]  # Prometheus adds up
        for reasons in re.findall(r'reason=~?"([^"]+)"', rule["expr"]):
            assert set(reasons.split("|")) <= codes, rule["alert"]


def table(metrics: Metrics) -> list[str]:
    """The lines of the table in the documentation, sorted by name."""
    lines = []
    for family in metrics.registry.collect():
        if not family.name.startswith("eulerlora_"):
            continue
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        shown = ", ".join(f"`{label}`" for label in sorted(labels))
        lines.append(
            f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |"
        )
    return sorted(lines)
