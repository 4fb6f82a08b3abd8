"""Metrics of dispositions, decisions and the shift monitors."""

from prometheus_client import CollectorRegistry

from eulerlora_contract.answers import Disposition
from service.telemetry.clinic_metrics import ClinicMetrics
from tests.service.observed import counted_clinic_metrics


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
