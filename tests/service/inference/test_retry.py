"""Retries of batches in which some or all items fail."""

from collections.abc import Callable

import pytest

from eulerlora_client.contract.problems import ModelFailure, OutOfMemory, Problem
from service.inference.engine import DeviceFailed
from service.inference.workers import run_with_retry
from tests.service.fake_engine import FakeEngine, item_of

OUT_OF_MEMORY = OutOfMemory("full")


def run(
    values: list[int], error_of: Callable[[list[int]], Exception | None]
) -> tuple[list[object], list[list[int]]]:
    """Returns the outputs, with problems as their class, and the batches that ran."""
    engine = FakeEngine()
    engine.error_of = error_of
    results = run_with_retry(engine.infer, [item_of(value) for value in values])
    outputs = [type(result) if isinstance(result, Problem) else int(result) for result in results]
    return outputs, engine.batches


def test_a_good_batch_runs_once() -> None:
    assert run([1, 2, 3], lambda _: None) == ([1, 2, 3], [[1, 2, 3]])


def test_the_items_of_a_failed_batch_run_again_alone_once() -> None:
    outputs, batches = run([1, 2, 3], lambda values: ValueError() if 2 in values else None)
    assert outputs == [1, ModelFailure, 3]
    assert batches == [[1, 2, 3], [1], [2], [3]]


def test_an_item_that_failed_alone_does_not_run_again() -> None:
    assert run([2], lambda _: ValueError()) == ([ModelFailure], [[2]])


def test_every_item_gets_a_problem_if_the_engine_always_fails() -> None:
    outputs, batches = run([1, 2], lambda _: RuntimeError())
    assert outputs == [ModelFailure, ModelFailure]
    assert batches == [[1, 2], [1], [2]]


def test_a_batch_that_is_out_of_memory_is_split_in_two() -> None:
    outputs, batches = run([1, 2, 3, 4, 5], lambda v: OUT_OF_MEMORY if len(v) > 3 else None)
    assert outputs == [1, 2, 3, 4, 5]
    assert batches == [[1, 2, 3, 4, 5], [1, 2, 3], [4, 5]]


def test_a_batch_is_split_only_once() -> None:
    outputs, batches = run([1, 2, 3, 4], lambda v: OUT_OF_MEMORY if 1 in v else None)
    assert outputs == [OutOfMemory, OutOfMemory, 3, 4]
    assert batches == [[1, 2, 3, 4], [1, 2], [3, 4]]


def test_a_single_item_that_is_out_of_memory_does_not_run_again() -> None:
    assert run([7], lambda _: OUT_OF_MEMORY) == ([OutOfMemory], [[7]])


def test_a_failed_half_of_a_split_batch_runs_again_item_by_item() -> None:
    def error_of(values: list[int]) -> Exception | None:
        if len(values) == 4:
            return OUT_OF_MEMORY
        return ValueError() if 3 in values else None

    outputs, batches = run([1, 2, 3, 4], error_of)
    assert outputs == [1, 2, ModelFailure, 4]
    assert batches == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]


def test_a_batch_does_not_run_again_on_a_lost_device() -> None:
    engine = FakeEngine()
    engine.error_of = lambda _: DeviceFailed("gone")
    with pytest.raises(DeviceFailed):
        run_with_retry(engine.infer, [item_of(1), item_of(2)])
    assert engine.batches == [[1, 2]]


def test_the_cause_of_a_failure_is_logged_but_not_part_of_the_problem(caplog) -> None:
    engine = FakeEngine()
    engine.error_of = lambda _: ValueError("a secret")
    (problem,) = run_with_retry(engine.infer, [item_of(1)])
    assert isinstance(problem, ModelFailure)
    assert "a secret" not in problem.detail
    assert "a secret" in caplog.text
