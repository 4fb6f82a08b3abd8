"""What is counted, by how much, under which names and labels."""

import math
import re
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from service.telemetry.events import RequestOutcome
from service.telemetry.metric_families import REASONS
from service.telemetry.metrics import Metrics
from tests.service.observed import (
    BODY,
    OUTCOME,
    MadeUpTiming,
    State,
    batch,
    count_everything,
    observed_app,
    replace_model,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def metrics(state) -> Metrics:
    return state.metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"eulerlora_{name}", labels)


def test_a_request_is_counted_once_with_its_duration_and_its_bytes(metrics) -> None:
    metrics.requested(OUTCOME)
    by_route = {"method": "POST", "route": "/predict"}
    assert value(metrics, "requests_total", **by_route, status="200") == 1
    assert value(metrics, "request_duration_seconds_count", **by_route) == 1
    assert value(metrics, "request_duration_seconds_sum", **by_route) == 0.3
    assert value(metrics, "request_body_bytes_sum", route="/predict") == 5000
    assert {value(metrics, "refusals_total", reason=reason) for reason in REASONS} == {0}


def test_a_refusal_is_counted_by_its_reason_from_zero(metrics) -> None:
    assert value(metrics, "refusals_total", reason="overloaded") == 0
    metrics.requested(RequestOutcome("POST", "/predict", 503, "overloaded", 0.001, 0))
    metrics.refused("overloaded")
    assert value(metrics, "refusals_total", reason="overloaded") == 2


def test_an_unknown_reason_is_other(metrics) -> None:
    metrics.refused("made up")
    assert value(metrics, "refusals_total", reason="other") == 1
    assert value(metrics, "refusals_total", reason="made up") is None


def test_a_batch_is_counted_with_its_rows_questions_and_seconds(metrics) -> None:
    metrics.batch_ran(batch(rows=12, questions=3, seconds=0.2))
    metrics.batch_ran(batch(rows=4, questions=1, seconds=0.1))
    for name, total in (("rows", 16), ("questions", 4), ("seconds", 0.3)):
        assert value(metrics, f"batch_{name}_count", model="tiny") == 2
        assert value(metrics, f"batch_{name}_sum", model="tiny") == pytest.approx(total)
    assert value(metrics, "batch_rows_bucket", model="tiny", le="4.0") == 1
    assert value(metrics, "batch_rows_bucket", model="tiny", le="16.0") == 2


def test_a_prediction_is_counted_with_its_uncertainty_and_its_times(metrics) -> None:
    metrics.answered(BODY, MadeUpTiming(0.002, 0.02, 0.2))
    by_mode = {"model": "tiny", "mode": "stoch"}
    assert value(metrics, "predictions_total", **by_mode) == 1
    for name, total in (
        ("entropy_nats", 0.45), ("mutual_information_nats", 0.04), ("msp_ratio", 0.8)
    ):  # fmt: skip
        assert value(metrics, f"{name}_sum", **by_mode) == total
    for name, total in (
        ("decode_seconds", 0.002), ("queue_wait_seconds", 0.02), ("model_seconds", 0.2)
    ):  # fmt: skip
        assert value(metrics, f"{name}_sum", model="tiny") == total


def test_the_ood_rate_is_that_of_the_images_that_have_a_threshold(metrics) -> None:
    for ood in (True, False, False, None):
        metrics.answered(BODY.model_copy(update={"ood": ood}), MadeUpTiming())
    by_mode = {"model": "tiny", "mode": "stoch"}
    assert value(metrics, "predictions_total", **by_mode) == 4
    assert value(metrics, "ood_checked_total", **by_mode) == 3
    assert value(metrics, "ood_total", **by_mode) == 1


def test_without_thresholds_there_is_no_ood_rate_rather_than_a_rate_of_zero(metrics) -> None:
    metrics.answered(BODY.model_copy(update={"ood": None}), MadeUpTiming())
    assert value(metrics, "ood_total", model="tiny", mode="stoch") is None


def test_a_model_that_is_not_served_has_no_label_of_its_own(metrics) -> None:
    metrics.answered(replace_model(BODY, "made up"), MadeUpTiming())
    metrics.batch_ran(batch(model="made up"))
    assert value(metrics, "predictions_total", model="other", mode="stoch") == 1
    assert value(metrics, "batch_rows_count", model="other") == 1
    assert "made up" not in TestClient(observed_app(metrics)).get("/metrics").text


def test_gauges_tell_what_is_so_when_they_are_read(metrics, state) -> None:
    assert value(metrics, "ready") == 1
    state.ready, state.rows, state.questions = False, 24, 3
    state.revisions = {"tiny": "sha256:2"}
    assert value(metrics, "ready") == 0
    assert value(metrics, "queue_rows") == 24
    assert value(metrics, "queue_questions") == 3
    assert value(metrics, "model_info", model="tiny", revision="sha256:2") == 1
    assert value(metrics, "model_info", model="tiny", revision="sha256:1") is None


def test_applications_do_not_share_their_metrics(metrics) -> None:
    other = State().metrics()
    metrics.requested(OUTCOME)
    labels = {"method": "POST", "route": "/predict", "status": "200"}
    assert value(metrics, "requests_total", **labels) == 1
    assert value(other, "requests_total", **labels) is None


def test_buckets_end_above_what_can_be_measured(metrics) -> None:
    assert BODY.mutual_information < math.log(7) < math.log(1000)
    metrics.answered(BODY.model_copy(update={"entropy": math.log(1000), "msp": 1}), MadeUpTiming())
    by_mode = {"model": "tiny", "mode": "stoch"}
    assert value(metrics, "entropy_nats_bucket", **by_mode, le="7.0") == 1
    assert value(metrics, "msp_ratio_bucket", **by_mode, le="0.999") == 0
    assert value(metrics, "msp_ratio_bucket", **by_mode, le="1.0") == 1


def test_the_documentation_lists_exactly_these_metrics(metrics) -> None:
    count_everything(metrics)
    written = (ROOT / "docs" / "metrics.md").read_text()
    assert [line for line in written.splitlines() if line.startswith("| `")] == table(metrics)


def test_every_metric_and_reason_in_an_alert_exists(metrics) -> None:
    count_everything(metrics)
    names = {each.name for family in metrics.registry.collect() for each in family.samples}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus-rules.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert {"alert", "expr", "labels", "annotations"} <= set.intersection(*map(set, alerts))
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        used = set(re.findall(r"\beulerlora_\w+", rule["expr"]))
        assert used and used <= names, rule["alert"]
        for reasons in re.findall(r'reason=~?"([^"]+)"', rule["expr"]):
            assert set(reasons.split("|")) <= REASONS, rule["alert"]


def table(metrics: Metrics) -> list[str]:
    """The lines of the documentation's table, by name."""
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
