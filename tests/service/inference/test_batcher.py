"""The threads that answer, with an engine of numbers in place of a model."""

import threading
import time
from collections.abc import Iterator

import pytest

from eulerlora_client.contract.problems import DeadlinePassed, ModelFailure, NotReady, Overloaded
from service.inference.device_errors import DeviceFailed
from tests.service.stage import LATER, TIMEOUT_S, Numbers, Stage, answers, number


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    with stage.batcher.running():
        yield stage
        stage.engine.gate.set()


def test_an_idle_thread_takes_a_single_question_at_once(stage: Stage) -> None:
    for value in (1, 2, 3):
        answered = stage.submit(value)[0].result(TIMEOUT_S)
        assert int(answered.log_probabilities) == value
        assert answered.queued_s < 1
    assert stage.engine.batches == [[1], [2], [3]]


def test_what_arrives_while_a_batch_runs_forms_the_next_one(stage: Stage) -> None:
    first = stage.blocked_by(6)
    later = stage.submit(1, 2, 3)
    assert not any(future.done() for future in (first, *later))
    stage.engine.gate.set()
    assert answers([first, *later]) == [6, 1, 2, 3]
    assert stage.engine.batches == [[6], [1, 2, 3]]


def test_a_batch_holds_no_more_rows_than_allowed(stage: Stage) -> None:
    stage.blocked_by(1)
    later = stage.submit(2, 2, 2, 3, 1, 4, 3)
    stage.engine.gate.set()
    assert answers(later) == [2, 2, 2, 3, 1, 4, 3]
    assert stage.engine.batches[1:] == [[2, 2, 2], [3, 1], [4], [3]]


def test_a_question_larger_than_the_budget_runs_alone(stage: Stage) -> None:
    stage.blocked_by(1)
    later = stage.submit(2, 99, 1, 1)
    stage.engine.gate.set()
    assert answers(later) == [2, 99, 1, 1]
    assert stage.engine.batches[1:] == [[2], [99], [1, 1]]


def test_a_later_small_question_does_not_overtake_a_large_one(stage: Stage) -> None:
    stage.blocked_by(1)
    later = stage.submit(4, 5, 1, 2)
    stage.engine.gate.set()
    answers(later)
    assert [value for batch in stage.engine.batches for value in batch] == [1, 4, 5, 1, 2]


def test_a_batch_holds_questions_of_one_engine_and_the_oldest_question_decides_which(
    stage: Stage,
) -> None:
    other = Numbers("other")
    stage.blocked_by(1)
    ours = stage.submit(2)
    theirs = [stage.batcher.submit(other, number(value), LATER) for value in (1, 2)]
    ours += stage.submit(3, 4)
    stage.engine.gate.set()
    assert answers([*ours, *theirs]) == [2, 3, 4, 1, 2]
    assert stage.engine.batches[1:] == [[2, 3], [4]]
    assert other.batches == [[1, 2]]
    assert [run.model for run in stage.runs] == ["numbers", "numbers", "other", "numbers"]


def test_questions_of_many_threads_each_get_their_own_answer(stage: Stage) -> None:
    got: dict[int, int] = {}

    def ask(value: int) -> None:
        got[value] = answers(stage.submit(value))[0]

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(100, 130)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert got == {value: value for value in range(100, 130)}


def test_a_cancelled_question_is_never_run(stage: Stage) -> None:
    stage.blocked_by(1)
    kept, dropped, last = stage.submit(2, 3, 1)
    assert dropped.cancel()
    stage.engine.gate.set()
    assert answers([kept, last]) == [2, 1]
    assert stage.engine.batches[1:] == [[2, 1]]


def test_a_batch_of_cancelled_questions_does_not_run_at_all(stage: Stage) -> None:
    stage.blocked_by(1)
    assert all(future.cancel() for future in stage.submit(5, 5))
    last = stage.submit(3)
    stage.engine.gate.set()
    assert answers(last) == [3]
    assert stage.engine.batches == [[1], [3]]


def test_a_question_whose_batch_runs_can_no_longer_be_cancelled(stage: Stage) -> None:
    running = stage.blocked_by(1)
    assert not running.cancel()
    stage.engine.gate.set()
    assert answers([running]) == [1]


def test_a_question_whose_deadline_passed_is_never_run(stage: Stage) -> None:
    stage.blocked_by(1)
    late = stage.batcher.submit(stage.engine, number(2), time.monotonic())
    after = stage.submit(3)
    stage.engine.gate.set()
    assert answers(after) == [3]
    with pytest.raises(DeadlinePassed):
        late.result(TIMEOUT_S)
    assert stage.engine.batches == [[1], [3]]


def test_one_bad_question_leaves_its_neighbours_their_answers(stage: Stage) -> None:
    stage.engine.raises = lambda values: ValueError("two") if 2 in values else None
    stage.blocked_by(5)
    one, two, three = stage.submit(1, 2, 3)
    after = stage.submit(4)
    stage.engine.gate.set()
    assert answers([one, three, *after]) == [1, 3, 4]
    with pytest.raises(ModelFailure):
        two.result(TIMEOUT_S)
    assert stage.engine.batches == [[5], [1, 2, 3], [1], [2], [3], [4]]


def test_every_batch_is_told_of_with_its_model_rows_questions_and_seconds(stage: Stage) -> None:
    stage.blocked_by(6)
    later = stage.submit(1, 2)
    stage.engine.gate.set()
    answers(later)
    assert [(run.model, run.rows, run.questions) for run in stage.runs] == [
        ("numbers", 6, 1),
        ("numbers", 3, 2),
    ]
    assert all(0 <= run.seconds < TIMEOUT_S for run in stage.runs)


def test_a_lost_device_ends_all_work_and_is_told_once(stage: Stage) -> None:
    lost = DeviceFailed("CUDA error: an illegal memory access was encountered")
    stage.engine.raises = lambda _: lost
    with stage.batcher.room.reserve(stage.engine, 1) as (decoding,):
        running = stage.blocked_by(6)
        waiting = stage.submit(1, 2, 3, 6)
        stage.engine.gate.set()
        assert stage.ended.wait(TIMEOUT_S)
        for future in (running, *waiting):
            with pytest.raises(NotReady):
                future.result(TIMEOUT_S)
        with pytest.raises(NotReady):
            stage.batcher.room.ask(decoding, number(1), LATER)
    with pytest.raises(NotReady):
        stage.submit(1)
    with pytest.raises(NotReady), stage.batcher.room.reserve(stage.engine, 1):
        pass
    assert stage.engine.batches == [[6]]
    assert stage.fatal == [lost]


def test_a_batch_without_an_end_is_a_lost_device() -> None:
    stage = Stage(max_batch_s=0.05)
    with stage.batcher.running():
        hung = stage.blocked_by(6)
        waiting = stage.submit(1)
        assert stage.ended.wait(TIMEOUT_S)
        for future in (hung, *waiting):
            with pytest.raises(NotReady):
                future.result(TIMEOUT_S)
        assert not stage.engine.gate.is_set()
    stage.engine.gate.set()  # the end of a hung thread, after all, changes nothing
    assert len(stage.fatal) == 1
    assert "0.05 s" in str(stage.fatal[0])


def test_batches_that_end_in_time_are_not_taken_for_hung_ones() -> None:
    stage = Stage(max_batch_s=2)
    with stage.batcher.running():
        assert answers(stage.submit(1, 2, 3)) == [1, 2, 3]
    assert stage.fatal == []


def test_closing_answers_what_waits_and_refuses_what_comes_after() -> None:
    stage = Stage()
    first, waiting = None, []
    refused = threading.Event()

    def release() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not refused.is_set() and time.monotonic() < deadline:
            try:
                waiting.extend(stage.submit(3))
            except NotReady:
                refused.set()
        stage.engine.gate.set()

    with stage.batcher.running():
        first = stage.blocked_by(5)
        waiting += stage.submit(4, 4, 4)
        releasing = threading.Thread(target=release)
        releasing.start()
    assert refused.is_set()
    releasing.join(TIMEOUT_S)
    assert answers([first, *waiting])[:4] == [5, 4, 4, 4]


def test_leaving_ends_all_threads_even_when_the_service_fails() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), Stage().batcher.running():
        assert threading.active_count() == before + 2
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_the_times_tell_how_long_a_question_waited_and_its_batch_ran(stage: Stage) -> None:
    started = time.monotonic()
    first = stage.blocked_by(6)
    second = stage.submit(2)[0]
    asked = time.monotonic()
    threading.Event().wait(0.1)
    held = time.monotonic() - asked
    stage.engine.gate.set()
    one, two = first.result(TIMEOUT_S), second.result(TIMEOUT_S)
    passed = time.monotonic() - started
    assert held <= one.ran_s <= passed
    assert held <= two.queued_s <= passed
    assert 0 <= one.queued_s <= passed - one.ran_s
    assert 0 <= two.ran_s <= passed - two.queued_s


def test_places_are_taken_all_or_none_and_are_free_again_afterwards() -> None:
    stage = Stage(max_waiting_rows=10)
    with stage.batcher.room.reserve(stage.engine, 2, count=3):
        assert (stage.batcher.waiting_rows, stage.batcher.waiting_questions) == (6, 3)
        with pytest.raises(Overloaded), stage.batcher.room.reserve(stage.engine, 3, count=2):
            pass
        with stage.batcher.room.reserve(stage.engine, 2, count=2):
            assert stage.batcher.waiting_rows == 10
    assert (stage.batcher.waiting_rows, stage.batcher.waiting_questions) == (0, 0)


def test_lanes_answer_at_the_same_time_and_none_waits_for_another() -> None:
    stage = Stage(lanes=2)
    quick = Numbers("quick")
    with stage.batcher.running():
        held = stage.blocked_by(6)
        for value in (1, 2, 3):
            asked = stage.batcher.submit(quick, number(value), LATER)  # type: ignore[arg-type]
            assert answers([asked]) == [value]
        assert not held.done()
        stage.engine.gate.set()
        assert answers([held]) == [6]


def test_all_lanes_finish_what_was_accepted_before_the_end() -> None:
    stage = Stage(lanes=3)
    with stage.batcher.running():
        accepted = stage.submit(*range(1, 30))
    assert answers(accepted) == list(range(1, 30))


def test_a_device_lost_in_one_lane_ends_the_others() -> None:
    stage = Stage(lanes=2)
    lost, failing = DeviceFailed("CUDA error: lost"), Numbers("failing")
    failing.raises = lambda _: lost
    with stage.batcher.running():
        other = stage.blocked_by(6)
        asked = stage.batcher.submit(failing, number(1), LATER)  # type: ignore[arg-type]
        for future in (asked, other):
            with pytest.raises(NotReady):
                future.result(TIMEOUT_S)
        stage.engine.gate.set()
    assert stage.fatal == [lost]


def test_a_pass_without_an_end_in_one_lane_is_a_lost_device_while_another_works() -> None:
    stage = Stage(lanes=2, max_batch_s=0.05)
    quick = Numbers("quick")
    with stage.batcher.running():
        hung = stage.blocked_by(6)
        while not stage.ended.is_set():
            try:
                stage.batcher.submit(quick, number(1), LATER).result(TIMEOUT_S)  # type: ignore[arg-type]
            except NotReady:
                break
        with pytest.raises(NotReady):
            hung.result(TIMEOUT_S)
    stage.engine.gate.set()
    assert len(stage.fatal) == 1
