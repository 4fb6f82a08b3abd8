"""The worker threads and retries of failed batches, with a fake engine."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eulerlora_contract.problems import OutOfMemory, Problem
from service.inference.engine import DeviceFailed
from service.inference.workers import worker_count
from tests.problems import raises_problem
from tests.service.fake_engine import (
    NO_DEADLINE,
    TIMEOUT_S,
    FakeEngine,
    WorkersHarness,
    item_of,
    values_of,
)

FULL = OutOfMemory("full")


@pytest.fixture(autouse=True)
def restored_thread_count() -> Iterator[None]:
    """Restores torch's number of threads after a test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def fail_as_a_whole_and_with_3(values: list[int]) -> Exception | None:
    if len(values) == 4:
        return FULL
    return ValueError() if 3 in values else None


@pytest.mark.parametrize(
    ("values", "error_of", "outputs", "batches"),
    [
        ([1, 2, 3], lambda values: ValueError() if 2 in values else None,
         [1, "model_failure", 3], [[1, 2, 3], [1], [2], [3]]),
        ([1, 2, 3, 4, 5], lambda values: FULL if len(values) > 3 else None,
         [1, 2, 3, 4, 5], [[1, 2, 3, 4, 5], [1, 2, 3], [4, 5]]),
        ([1, 2, 3, 4], lambda values: FULL if 1 in values else None,
         ["out_of_memory", "out_of_memory", 3, 4], [[1, 2, 3, 4], [1, 2], [3, 4]]),
        ([1, 2, 3, 4], fail_as_a_whole_and_with_3,
         [1, 2, "model_failure", 4], [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]),
    ],
    ids=["one item fails", "out of memory", "out of memory twice", "out of memory, then a failure"],
)  # fmt: skip
def test_a_failed_batch_runs_again_item_by_item_or_in_two_halves_once(
    values: list[int],
    error_of: Callable[[list[int]], Exception | None],
    outputs: list[object],
    batches: list[list[int]],
) -> None:
    harness = WorkersHarness(max_batch_rows=100)
    with harness.workers.running():
        first, results = run_together(harness, values, error_of)
        assert values_of([first]) == [9]
        for future, output in zip(results, outputs, strict=True):
            if isinstance(output, int):
                assert values_of([future]) == [output]
            else:
                assert code_of(future) == output
    assert harness.engine.batches == [[9], *batches]


def code_of(future: "Future[Any]") -> str:
    """The code of the problem that an item ends with."""
    problem = future.exception(TIMEOUT_S)
    assert isinstance(problem, Problem)
    return problem.code


def run_together(
    harness: WorkersHarness,
    values: list[int],
    error_of: Callable[[list[int]], Exception | None],
) -> tuple["Future[Any]", list["Future[Any]"]]:
    """Runs items in one batch, whose passes may fail, after a pass for 9."""
    first = harness.block_with(9)
    results = harness.submit(*values)
    harness.engine.error_of = lambda of_pass: None if 9 in of_pass else error_of(of_pass)
    harness.engine.gate.set()
    return first, results


def test_a_batch_does_not_run_again_on_a_lost_device() -> None:
    harness = WorkersHarness()
    with harness.workers.running():
        _, results = run_together(harness, [1, 2], lambda _: DeviceFailed("gone"))
        for future in results:
            assert code_of(future) == "not_ready"
    assert harness.engine.batches == [[9], [1, 2]]


def test_the_cause_of_a_failure_is_logged_but_not_part_of_the_problem(caplog) -> None:
    harness = WorkersHarness()
    with harness.workers.running():
        first, (result,) = run_together(harness, [1], lambda _: ValueError("a secret"))
        assert values_of([first]) == [9]
        before = harness.workers.last_result_at
        assert code_of(result) == "model_failure"
        assert harness.workers.last_result_at == before
    assert "a secret" not in str(result.exception())
    assert "a secret" in caplog.text


@pytest.fixture
def harness() -> Iterator[WorkersHarness]:
    harness = WorkersHarness()
    with harness.workers.running():
        yield harness
        harness.engine.gate.set()


def test_items_that_arrive_during_a_batch_form_the_next_one(harness: WorkersHarness) -> None:
    first = harness.block_with(6)
    later = harness.submit(1, 2, 3)
    assert not any(future.done() for future in (first, *later))
    harness.engine.gate.set()
    assert values_of([first, *later]) == [6, 1, 2, 3]
    assert harness.engine.batches == [[6], [1, 2, 3]]


def test_a_bad_item_does_not_affect_the_rest_of_its_batch(harness: WorkersHarness) -> None:
    harness.engine.error_of = lambda values: ValueError("two") if 2 in values else None
    harness.block_with(5)
    one, two, three = harness.submit(1, 2, 3)
    harness.engine.gate.set()
    assert values_of([one, three]) == [1, 3]
    with raises_problem("model_failure"):
        two.result(TIMEOUT_S)


def test_every_batch_is_reported_with_its_model_rows_items_and_seconds(
    harness: WorkersHarness,
) -> None:
    harness.block_with(6)
    later = harness.submit(1, 2)
    harness.engine.gate.set()
    values_of(later)
    assert [batch.rows for batch, _ in harness.runs] == [6, 3]
    assert all(seconds >= 0 for _, seconds in harness.runs)


def test_a_lost_device_ends_all_inference_and_is_reported_once(harness: WorkersHarness) -> None:
    lost = DeviceFailed("CUDA error: an illegal memory access was encountered")
    harness.engine.error_of = lambda _: lost
    with harness.queue.reserve("a", harness.engine, [1]) as (decoding,):
        running = harness.block_with(6)
        waiting = harness.submit(1, 2, 3, 6)
        harness.engine.gate.set()
        assert harness.failed.wait(TIMEOUT_S)
        for future in (running, *waiting):
            with raises_problem("not_ready"):
                future.result(TIMEOUT_S)
        with raises_problem("not_ready"):
            harness.queue.enqueue(decoding, item_of(1), NO_DEADLINE)
    with raises_problem("not_ready"):
        harness.submit(1)
    with raises_problem("not_ready"), harness.queue.reserve("a", harness.engine, [1]):
        pass
    assert harness.engine.batches == [[6]]
    assert harness.fatal == [lost]


def test_closing_runs_the_accepted_items_and_refuses_new_ones() -> None:
    harness = WorkersHarness()
    futures = []
    refused = threading.Event()

    def submit_until_refused() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not refused.is_set() and time.monotonic() < deadline:
            try:
                futures.extend(harness.submit(3))
            except Problem as problem:
                assert problem.code == "not_ready"
                refused.set()
        harness.engine.gate.set()

    with harness.workers.running():
        futures.append(harness.block_with(5))
        futures += harness.submit(4, 4, 4)
        thread = threading.Thread(target=submit_until_refused)
        thread.start()
    assert refused.is_set()
    thread.join(TIMEOUT_S)
    assert values_of(futures)[:4] == [5, 4, 4, 4]


def test_a_result_has_the_times_in_the_queue_and_in_the_batch(harness: WorkersHarness) -> None:
    started = time.monotonic()
    first = harness.block_with(6)
    second = harness.submit(2)[0]
    blocked_from = time.monotonic()
    threading.Event().wait(0.1)
    blocked_s = time.monotonic() - blocked_from
    assert harness.workers.last_result_at == 0
    harness.engine.gate.set()
    one, two = first.result(TIMEOUT_S), second.result(TIMEOUT_S)
    total_s = time.monotonic() - started
    assert blocked_s <= one.ran_s <= total_s
    assert blocked_s <= two.queued_s <= total_s
    assert 0 <= one.queued_s <= total_s - one.ran_s
    assert 0 <= two.ran_s <= total_s - two.queued_s
    assert started + blocked_s <= harness.workers.last_result_at <= started + total_s


def test_workers_run_at_the_same_time_and_do_not_wait_for_each_other() -> None:
    harness = WorkersHarness(workers=2)
    fast = FakeEngine("fast")
    with harness.workers.running():
        blocked = harness.block_with(6)
        for value in (1, 2, 3):
            future = harness.workers.submit(fast, item_of(value))  # type: ignore[arg-type]
            assert values_of([future]) == [value]
        assert not blocked.done()
        harness.engine.gate.set()
        assert values_of([blocked]) == [6]


def test_a_hung_pass_in_one_worker_is_a_lost_device_while_another_worker_runs() -> None:
    harness = WorkersHarness(workers=2, max_batch_s=0.05)
    fast = FakeEngine("fast")
    with harness.workers.running():
        hung = harness.block_with(6)
        while not harness.failed.is_set():
            try:
                future = harness.workers.submit(fast, item_of(1))  # type: ignore[arg-type]
                future.result(TIMEOUT_S)
            except Problem as problem:
                assert problem.code == "not_ready"
                break
        with raises_problem("not_ready"):
            hung.result(TIMEOUT_S)
        assert not harness.engine.gate.is_set()
    harness.engine.gate.set()  # the late end of the hung pass has no effect
    assert len(harness.fatal) == 1
    assert "0.05 s (EULERLORA_SERVE_MAX_BATCH_S)" in str(harness.fatal[0])


def test_a_pass_is_not_hung_because_the_process_was_suspended(monkeypatch) -> None:
    harness = WorkersHarness(max_batch_s=5)  # a check every 0.5 s
    # Not the clock of this process, by which servers of other tests wait.
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600)
    with harness.workers.running():
        blocked = harness.block_with(6)
        monkeypatch.setattr("service.inference.workers.time", later)
        assert not harness.failed.wait(1)
        harness.engine.gate.set()
        assert values_of([blocked]) == [6]


def test_a_cpu_has_a_worker_per_core_and_a_gpu_two_but_one_for_a_compiled_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    for cores, workers in ((1, 1), (2, 2), (64, 4)):
        monkeypatch.setattr(torch, "get_num_threads", lambda cores=cores: cores)
        assert worker_count(cpu, None) == workers
    cuda = torch.device("cuda")
    assert worker_count(cpu, "inductor") == worker_count(cuda, "inductor") == 1
    assert worker_count(cuda, None) == 2


def test_a_single_pass_gets_all_cores_and_concurrent_ones_an_equal_part() -> None:
    torch.set_num_threads(5)
    harness, cores = WorkersHarness(workers=6), list[int]()

    def record(_: list[int]) -> None:
        cores.append(torch.get_num_threads())  # of the thread of the pass

    def fail(_: list[int]) -> Exception:
        return ZeroDivisionError()  # a failed pass returns its cores

    harness.engine.started = record
    with harness.workers.running():
        passes = [harness.block_with(1) for _ in range(6)]
        assert cores == [5, 2, 1, 1, 1, 1]
        harness.engine.error_of = fail
        harness.engine.gate.set()
        assert {code_of(one) for one in passes} == {"model_failure"}
        harness.engine.error_of = lambda _: None
        values_of(harness.submit(1))
    assert cores[-1] == 5
    assert torch.get_num_threads() == 5
