"""The queue of questions and its thread, with fake answers in place of a model."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pytest

from service.batcher import Answered, Batcher

TIMEOUT_S = 20  # how long a test waits for what should come at once
Answers = Callable[[Sequence[int]], Sequence[str]]


class Stage:
    """A batcher of numbers: a question's rows are its value; its answer is the value in words.

    batches: the questions of every batch that ran, in order. While `gate` is unset a batch waits;
    `entered` is set when one does.
    """

    def __init__(self, max_rows: int = 6) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.batcher = Batcher(self.answer, lambda question: question, max_rows)

    def answer(self, questions: Sequence[int]) -> list[str]:
        self.batches.append(list(questions))
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)
        if 13 in questions:
            raise ValueError("thirteen")
        return [str(question) for question in questions]

    def blocked_by(self, question: int) -> "Future[Answered[str]]":
        """The future of a question whose batch now holds the thread until `gate` is set."""
        self.gate.clear()
        self.entered.clear()
        future = self.batcher.submit(question)
        assert self.entered.wait(TIMEOUT_S)
        return future

    def submit(self, *questions: int) -> list["Future[Answered[str]]"]:
        return [self.batcher.submit(question) for question in questions]


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.batcher.start()
    yield stage
    stage.gate.set()
    stage.batcher.close()


def answers(futures: Sequence["Future[Answered[str]]"]) -> list[str]:
    return [future.result(TIMEOUT_S).answer for future in futures]


def test_an_idle_thread_takes_a_single_question_at_once(stage: Stage) -> None:
    for question in (1, 2, 3):
        answered = stage.submit(question)[0].result(TIMEOUT_S)
        assert answered.answer == str(question)
        assert answered.queued_s < 1
    assert stage.batches == [[1], [2], [3]]


def test_what_arrives_while_a_batch_runs_forms_the_next_one(stage: Stage) -> None:
    first = stage.blocked_by(6)
    later = stage.submit(1, 2, 3)
    assert not any(future.done() for future in (first, *later))
    stage.gate.set()
    assert answers([first, *later]) == ["6", "1", "2", "3"]
    assert stage.batches == [[6], [1, 2, 3]]


def test_a_batch_holds_no_more_rows_than_allowed(stage: Stage) -> None:
    stage.blocked_by(1)
    later = stage.submit(2, 2, 2, 3, 1, 4, 3)
    stage.gate.set()
    assert answers(later) == ["2", "2", "2", "3", "1", "4", "3"]
    assert stage.batches[1:] == [[2, 2, 2], [3, 1], [4], [3]]


def test_a_question_larger_than_the_budget_runs_alone(stage: Stage) -> None:
    stage.blocked_by(1)
    later = stage.submit(2, 99, 1, 1)
    stage.gate.set()
    assert answers(later) == ["2", "99", "1", "1"]
    assert stage.batches[1:] == [[2], [99], [1, 1]]


def test_a_later_small_question_does_not_overtake_a_large_one(stage: Stage) -> None:
    stage.blocked_by(1)
    later = stage.submit(4, 5, 1, 2)
    stage.gate.set()
    answers(later)
    assert [question for batch in stage.batches for question in batch] == [1, 4, 5, 1, 2]


def test_questions_of_many_threads_each_get_their_own_answer(stage: Stage) -> None:
    got: dict[int, str] = {}

    def ask(question: int) -> None:
        got[question] = stage.submit(question)[0].result(TIMEOUT_S).answer

    threads = [threading.Thread(target=ask, args=(q,)) for q in range(100, 130)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert got == {question: str(question) for question in range(100, 130)}


def test_a_cancelled_question_is_never_run(stage: Stage) -> None:
    stage.blocked_by(1)
    kept, dropped, last = stage.submit(2, 3, 1)
    assert dropped.cancel()
    stage.gate.set()
    assert answers([kept, last]) == ["2", "1"]
    assert stage.batches[1:] == [[2, 1]]


def test_a_batch_of_cancelled_questions_does_not_run_at_all(stage: Stage) -> None:
    stage.blocked_by(1)
    assert all(future.cancel() for future in stage.submit(2, 2))
    stage.gate.set()
    time.sleep(0.05)  # the thread passes over the cancelled ones
    assert answers(stage.submit(3)) == ["3"]
    assert stage.batches == [[1], [3]]


def test_a_question_whose_batch_runs_can_no_longer_be_cancelled(stage: Stage) -> None:
    running = stage.blocked_by(1)
    assert not running.cancel()
    stage.gate.set()
    assert answers([running]) == ["1"]


def test_an_error_reaches_just_the_questions_of_its_batch(stage: Stage, caplog) -> None:
    before = stage.blocked_by(1)
    beside, bad, after = stage.submit(4, 13, 5)  # 13 rows are over the budget: alone
    stage.gate.set()
    assert answers([before, beside, after]) == ["1", "4", "5"]
    with pytest.raises(ValueError, match="thirteen"):
        bad.result(TIMEOUT_S)
    assert "a batch of 1 questions failed" in caplog.text


def test_an_error_reaches_all_questions_of_its_batch_and_later_ones_are_answered(caplog) -> None:
    stage = Stage(max_rows=100)
    stage.batcher.start()
    stage.blocked_by(1)
    failing = stage.submit(2, 13, 3)
    stage.gate.set()
    for future in failing:
        assert isinstance(future.exception(TIMEOUT_S), ValueError)
    assert answers(stage.submit(7)) == ["7"]
    stage.batcher.close()


def test_closing_answers_what_waits_and_refuses_what_comes_after() -> None:
    stage = Stage()
    stage.batcher.start()
    first = stage.blocked_by(5)
    waiting = stage.submit(4, 4, 4)
    closing = threading.Thread(target=stage.batcher.close)
    closing.start()
    deadline = time.monotonic() + TIMEOUT_S
    refused = False
    while not refused and time.monotonic() < deadline:
        try:
            waiting += stage.submit(3)
        except RuntimeError:
            refused = True
    assert refused
    assert closing.is_alive()
    stage.gate.set()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert all(future.done() for future in (first, *waiting))
    assert answers(waiting)[:3] == ["4", "4", "4"]


def test_closing_an_idle_batcher_ends_its_thread() -> None:
    before = threading.active_count()
    stage = Stage()
    stage.batcher.start()
    assert threading.active_count() == before + 1
    stage.batcher.close()
    assert threading.active_count() == before


def test_a_question_asked_before_the_start_is_answered_after_it() -> None:
    stage = Stage()
    future = stage.submit(2)[0]
    assert not future.done()
    stage.batcher.start()
    assert answers([future]) == ["2"]
    stage.batcher.close()


def test_the_times_tell_how_long_a_question_waited_and_its_batch_ran(stage: Stage) -> None:
    started = time.monotonic()
    first = stage.blocked_by(6)
    second = stage.submit(2)[0]
    asked = time.monotonic()
    time.sleep(0.1)
    held = time.monotonic() - asked
    stage.gate.set()
    one, two = first.result(TIMEOUT_S), second.result(TIMEOUT_S)
    passed = time.monotonic() - started
    assert held <= one.ran_s <= passed
    assert held <= two.queued_s <= passed
    assert 0 <= one.queued_s <= passed - one.ran_s
    assert 0 <= two.ran_s <= passed - two.queued_s
