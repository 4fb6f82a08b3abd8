"""When comparisons with the shadow run, and which are dropped."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from service.inference.queue import RequestQueue
from service.settings import ServiceSettings
from service.shadow import Shadow
from service.telemetry.metrics import Metrics
from tests.server_process import END_S, wait_until
from tests.service.fake_engine import FakeEngine
from tests.service.observed import GAUGES


@pytest.fixture
def requests() -> RequestQueue:
    return RequestQueue(ServiceSettings())


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(lambda: GAUGES)


@pytest.fixture
def shadow(requests, metrics) -> Iterator[Shadow]:
    model: Any = FakeEngine("tiny")
    shadow = Shadow(lambda: model, requests, metrics, lambda _, compare, served: compare(served))
    with shadow.running():
        yield shadow


def submit(shadow: Shadow, name: str, compare: Any) -> None:
    """An answer of the model of this name, which `compare` compares."""
    image: Any = SimpleNamespace(
        request=SimpleNamespace(served=FakeEngine(name)), prediction="a prediction"
    )
    asyncio.run(shadow.answered(image, compare))


def count(metrics: Metrics, outcome: str) -> float:
    labels = {"model": "tiny", "outcome": outcome}
    return metrics.registry.get_sample_value("eulerlora_shadow_answers_total", labels) or 0


def test_a_comparison_runs_once_no_request_is_in_progress(shadow, requests) -> None:
    compared = threading.Event()

    def compare(_: object) -> dict[str, Any]:
        assert requests.is_idle
        compared.set()
        return {}

    served: Any = FakeEngine("tiny")
    with requests.reserve("a client", served, [2]):
        submit(shadow, "tiny", compare)
        assert not compared.wait(0.2)
    assert compared.wait(END_S)


def test_a_comparison_pauses_while_a_request_is_in_progress(shadow, requests) -> None:
    started, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def compare(_: object) -> dict[str, Any]:
        started.set()
        assert goes_on.wait(END_S)
        torch.zeros(1).add(1)
        assert requests.is_idle
        ended.set()
        return {}

    served: Any = FakeEngine("tiny")
    submit(shadow, "tiny", compare)
    assert started.wait(END_S)
    with requests.reserve("a client", served, [2]):
        goes_on.set()
        assert not ended.wait(0.2)
    assert ended.wait(END_S)


def test_comparisons_above_the_limit_are_dropped_and_counted(shadow, requests, metrics) -> None:
    served: Any = FakeEngine("tiny")
    with requests.reserve("a client", served, [2]):
        for _ in range(26):  # 16 may wait
            submit(shadow, "tiny", lambda _: {})
        dropped = count(metrics, "dropped")
    assert dropped in (9, 10)  # the thread may hold one more
    wait_until(lambda: count(metrics, "compared") == 26 - dropped, END_S)


def test_a_failure_is_counted_and_the_next_comparison_runs(shadow, metrics) -> None:
    def fail(_: object) -> NoReturn:
        raise ZeroDivisionError

    submit(shadow, "tiny", fail)
    submit(shadow, "other", fail)  # of a model without a shadow
    submit(shadow, "tiny", lambda _: {})
    wait_until(lambda: count(metrics, "compared") == 1, END_S)
    assert count(metrics, "failed") == 1
