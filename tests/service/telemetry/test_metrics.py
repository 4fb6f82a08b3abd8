"""Values, names and labels of all metrics."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from eulerlora_contract.problems import SENT_BY_SERVICE
from service.telemetry.metrics import Metrics
from service.telemetry.records import RequestObservation
from tests.service.fake_engine import FakeClock
from tests.service.observed import (
    AUTO_BODY,
    BODY,
    COMPLETED,
    GAUGES,
    SETTLED_BODY,
    completed,
)


@pytest.fixture
def gauges() -> Mock:
    """The values of the gauges, which a test sets as its `return_value`."""
    return Mock(return_value=GAUGES)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def metrics(gauges, clock) -> Metrics:
    return Metrics(gauges, clock)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"eulerlora_{name}", labels)


def test_a_request_is_counted_with_duration_and_bytes(metrics) -> None:
    metrics.count_request(COMPLETED)
    by_route = {"method": "POST", "route": "/predict"}
    assert value(metrics, "requests_total", **by_route, status="200", client="anonymous") == 1
    assert value(metrics, "request_duration_seconds_count", **by_route) == 1
    assert value(metrics, "request_duration_seconds_sum", **by_route) == 0.3
    assert value(metrics, "request_body_bytes_sum", route="/predict") == 5000
    codes = {problem.code for problem in SENT_BY_SERVICE}
    assert {value(metrics, "refusals_total", reason=code) for code in codes} == {0}


def test_problems_are_counted_by_code_from_zero(metrics) -> None:
    assert value(metrics, "refusals_total", reason="overloaded") == 0
    failed = RequestObservation(
        "POST", "/predict", 503, "overloaded", image_problems=["overloaded"]
    )
    metrics.count_request(failed)
    metrics.count_problem("overloaded")
    assert value(metrics, "refusals_total", reason="overloaded") == 3


def test_rare_events_of_a_model_are_counted_from_zero(metrics, gauges) -> None:
    series = [
        ("shadow_answers_total", {"outcome": "failed"}),
        ("shadow_fields_total", {"field": "disposition", "result": "less_urgent"}),
    ]
    gauges.return_value = replace(GAUGES, models={}, shadow={})  # still loading
    metrics.exposition("")
    assert [value(metrics, name, model="tiny", **labels) for name, labels in series] == [None] * 2
    gauges.return_value = GAUGES
    metrics.exposition("application/openmetrics-text")
    metrics.count_shadow("tiny", "failed")
    assert [value(metrics, name, model="tiny", **labels) for name, labels in series] == [1, 0]


def test_a_batch_is_counted_with_rows_items_and_seconds(metrics) -> None:
    metrics.count_batch("tiny", rows=12, items=3, seconds=0.2)
    metrics.count_batch("tiny", rows=4, items=1, seconds=0.1)
    for name, total in (("rows", 16), ("questions", 4), ("seconds", 0.3)):
        assert value(metrics, f"batch_{name}_count", model="tiny") == 2
        assert value(metrics, f"batch_{name}_sum", model="tiny") == pytest.approx(total)
    assert value(metrics, "batch_rows_bucket", model="tiny", le="4.0") == 1
    assert value(metrics, "batch_rows_bucket", model="tiny", le="16.0") == 2


def test_a_prediction_is_counted_with_uncertainty_and_timing(metrics) -> None:
    metrics.count_prediction(completed(BODY))
    by_mode = {"model": "tiny", "mode": "stoch"}
    assert value(metrics, "predictions_total", **by_mode, client="anonymous") == 1
    for name, total in (
        ("entropy_nats", 0.45), ("mutual_information_nats", 0.04), ("msp_ratio", 0.8)
    ):  # fmt: skip
        assert value(metrics, f"{name}_sum", **by_mode) == total
    for name, total in (
        ("decode_seconds", 0.002), ("queue_wait_seconds", 0.02), ("model_seconds", 0.2)
    ):  # fmt: skip
        assert value(metrics, f"{name}_sum", model="tiny") == total


@pytest.mark.parametrize("name", ["ood", "unfamiliar"])
def test_the_rate_of_a_flag_counts_only_images_with_a_threshold(metrics, name) -> None:
    by_mode = {"model": "tiny", "mode": "stoch"}
    for flag, checked, flagged in ((None, None, None), (True, 1, 1), (False, 2, 1)):
        metrics.count_prediction(completed(BODY.model_copy(update={name: flag})))
        assert value(metrics, f"{name}_checked_total", **by_mode) == checked
        assert value(metrics, f"{name}_total", **by_mode) == flagged


def test_requests_and_predictions_are_counted_by_the_class_of_the_client(metrics) -> None:
    metrics.count_request(replace(COMPLETED, key_name="clinic"))
    metrics.count_prediction(completed(), "keyed")
    request = {"method": "POST", "route": "/predict", "status": "200"}
    by_mode = {"model": "tiny", "mode": "stoch"}
    for client, expected in (("keyed", 1), ("anonymous", None)):
        assert value(metrics, "requests_total", **request, client=client) == expected
        assert value(metrics, "predictions_total", **by_mode, client=client) == expected


def test_the_samples_of_auto_are_counted_with_the_answers_that_need_none(metrics) -> None:
    for body in (SETTLED_BODY, SETTLED_BODY, AUTO_BODY, BODY):
        metrics.count_prediction(completed(body))
    assert value(metrics, "auto_samples_count", model="tiny") == 3
    assert value(metrics, "auto_samples_bucket", model="tiny", le="1.0") == 2


def test_gauges_have_the_current_values(metrics, gauges) -> None:
    assert value(metrics, "ready") == 1
    models = {"tiny": {"revision": "sha256:2", "precision": "bfloat16"}}
    gauges.return_value = replace(GAUGES, ready=False, queue_rows=24, queue_items=3, models=models)
    assert value(metrics, "ready") == 0
    assert value(metrics, "queue_rows") == 24
    assert value(metrics, "queue_questions") == 3
    labels = {"model": "tiny", "precision": "bfloat16"}
    assert value(metrics, "model_info", **labels, revision="sha256:2") == 1
    assert value(metrics, "model_info", **labels, revision="sha256:1") is None


def test_scrapes_within_a_second_share_one_text(metrics, gauges, clock, monkeypatch) -> None:
    monkeypatch.setattr("service.telemetry.metrics._CACHE_S", 1)  # other tests have no cache
    first = metrics.exposition("").content
    assert b"eulerlora_queue_rows 0.0" in first
    gauges.return_value = replace(GAUGES, queue_rows=24)
    clock.now_s += 0.5
    assert metrics.exposition("").content is first
    clock.now_s += 0.5
    assert b"eulerlora_queue_rows 24.0" in metrics.exposition("").content


def test_requests_for_many_versions_share_one_text_for_each_format(metrics, monkeypatch) -> None:
    monkeypatch.setattr("service.telemetry.metrics._CACHE_S", 1)
    openmetrics = {
        id(metrics.exposition(f"application/openmetrics-text; version={number}.0.0").content)
        for number in range(1, 100)
    }
    plain = {id(metrics.exposition(f"text/plain; version={number}").content) for number in range(9)}
    assert len(openmetrics) == len(plain) == 1
    assert openmetrics != plain
