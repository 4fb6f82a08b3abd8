"""What becomes of a batch's questions when some of them, or all, cannot be answered."""

from collections.abc import Callable

import pytest

from eulerlora_client.contract.problems import ModelFailure, OutOfMemory, Problem
from service.inference.device_errors import DeviceFailed
from service.inference.retry import outcomes
from tests.service.stage import Numbers, number


def run(
    values: list[int], raises: Callable[[list[int]], Exception | None]
) -> tuple[list[object], list[list[int]]]:
    """The outcomes, problems by their class, and the batches that were run for them."""
    engine = Numbers()
    engine.raises = raises
    found = outcomes(engine.answer, [number(value) for value in values])
    told = [type(each) if isinstance(each, Problem) else int(each) for each in found]
    return told, engine.batches


def test_a_good_batch_is_run_once() -> None:
    assert run([1, 2, 3], lambda _: None) == ([1, 2, 3], [[1, 2, 3]])


def test_of_a_failing_batch_each_question_is_run_again_alone_once() -> None:
    told, batches = run([1, 2, 3], lambda values: ValueError() if 2 in values else None)
    assert told == [1, ModelFailure, 3]
    assert batches == [[1, 2, 3], [1], [2], [3]]


def test_a_question_that_failed_alone_is_not_run_again() -> None:
    assert run([2], lambda _: ValueError()) == ([ModelFailure], [[2]])


def test_an_engine_that_only_fails_fails_every_question_for_itself() -> None:
    told, batches = run([1, 2], lambda _: RuntimeError())
    assert told == [ModelFailure, ModelFailure]
    assert batches == [[1, 2], [1], [2]]


def test_a_batch_without_memory_is_split_in_two() -> None:
    told, batches = run([1, 2, 3, 4, 5], lambda v: OutOfMemory("full") if len(v) > 3 else None)
    assert told == [1, 2, 3, 4, 5]
    assert batches == [[1, 2, 3, 4, 5], [1, 2, 3], [4, 5]]


def test_a_batch_is_split_only_once() -> None:
    told, batches = run([1, 2, 3, 4], lambda v: OutOfMemory("full") if 1 in v else None)
    assert told == [OutOfMemory, OutOfMemory, 3, 4]
    assert batches == [[1, 2, 3, 4], [1, 2], [3, 4]]


def test_a_single_question_without_memory_is_not_run_again() -> None:
    assert run([7], lambda _: OutOfMemory("full")) == ([OutOfMemory], [[7]])


def test_a_failing_half_of_a_split_batch_is_run_one_by_one() -> None:
    def raises(values: list[int]) -> Exception | None:
        if len(values) == 4:
            return OutOfMemory("full")
        return ValueError() if 3 in values else None

    told, batches = run([1, 2, 3, 4], raises)
    assert told == [1, 2, ModelFailure, 4]
    assert batches == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]


def test_a_lost_device_is_not_asked_again() -> None:
    engine = Numbers()
    engine.raises = lambda _: DeviceFailed("gone")
    with pytest.raises(DeviceFailed):
        outcomes(engine.answer, [number(1), number(2)])
    assert engine.batches == [[1, 2]]


def test_the_failure_is_logged_and_not_told_to_the_client(caplog) -> None:
    engine = Numbers()
    engine.raises = lambda _: ValueError("a secret")
    (problem,) = outcomes(engine.answer, [number(1)])
    assert isinstance(problem, ModelFailure)
    assert "a secret" not in problem.detail
    assert "a secret" in caplog.text
