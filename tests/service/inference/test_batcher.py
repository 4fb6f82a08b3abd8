"""The worker threads, with a fake engine."""

import threading
import time
from collections.abc import Iterator

import pytest

from eulerlora_client.contract.problems import DeadlinePassed, ModelFailure, NotReady
from service.inference.engine import DeviceFailed
from tests.service.fake_engine import (
    NO_DEADLINE,
    TIMEOUT_S,
    BatcherHarness,
    FakeEngine,
    item_of,
    values_of,
)


@pytest.fixture
def harness() -> Iterator[BatcherHarness]:
    harness = BatcherHarness()
    with harness.batcher.running():
        yield harness
        harness.engine.gate.set()


def test_an_idle_worker_runs_a_single_item_at_once(harness: BatcherHarness) -> None:
    for value in (1, 2, 3):
        assert values_of(harness.submit(value)) == [value]
    assert harness.engine.batches == [[1], [2], [3]]


def test_items_that_arrive_during_a_batch_form_the_next_one(harness: BatcherHarness) -> None:
    first = harness.block_with(6)
    later = harness.submit(1, 2, 3)
    assert not any(future.done() for future in (first, *later))
    harness.engine.gate.set()
    assert values_of([first, *later]) == [6, 1, 2, 3]
    assert harness.engine.batches == [[6], [1, 2, 3]]


@pytest.mark.parametrize(
    ("values", "batches"),
    [
        ((2, 2, 2, 2, 2), [[2, 2, 2], [2, 2]]),
        ((2, 2, 2, 3, 1, 4, 3), [[2, 2, 2], [3, 1], [4], [3]]),
        ((2, 99, 1, 1), [[2], [99], [1, 1]]),  # an item over the limit runs alone
    ],
)
def test_a_batch_holds_items_up_to_the_row_limit_in_order(
    harness: BatcherHarness, values, batches
) -> None:
    harness.block_with(1)
    futures = harness.submit(*values)
    harness.engine.gate.set()
    assert values_of(futures) == list(values)
    assert harness.engine.batches[1:] == batches


def test_the_first_item_selects_the_engine_of_a_batch(harness: BatcherHarness) -> None:
    other = FakeEngine("other")
    harness.block_with(1)
    futures = harness.submit(2)
    other_futures = [
        harness.batcher.submit(other, item_of(value), NO_DEADLINE)  # type: ignore[arg-type]
        for value in (2, 3)
    ]
    futures += harness.submit(3, 4)
    harness.engine.gate.set()
    assert values_of([*futures, *other_futures]) == [2, 3, 4, 2, 3]
    assert harness.engine.batches[1:] == [[2, 3], [4]]
    assert other.batches == [[2, 3]]
    assert [run.model for run in harness.runs] == ["fake", "fake", "other", "fake"]


def test_items_of_many_threads_get_their_own_results(harness: BatcherHarness) -> None:
    results: dict[int, int] = {}

    def submit(value: int) -> None:
        results[value] = values_of(harness.submit(value))[0]

    threads = [threading.Thread(target=submit, args=(value,)) for value in range(100, 130)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert results == {value: value for value in range(100, 130)}


def test_a_cancelled_item_never_runs(harness: BatcherHarness) -> None:
    harness.block_with(1)
    first, cancelled, last = harness.submit(2, 3, 1)
    assert cancelled.cancel()
    harness.engine.gate.set()
    assert values_of([first, last]) == [2, 1]
    assert harness.engine.batches[1:] == [[2, 1]]


def test_a_batch_of_cancelled_items_does_not_run(harness: BatcherHarness) -> None:
    harness.block_with(1)
    assert all(future.cancel() for future in harness.submit(5, 5))
    last = harness.submit(3)
    harness.engine.gate.set()
    assert values_of(last) == [3]
    assert harness.engine.batches == [[1], [3]]


def test_a_running_item_cannot_be_cancelled(harness: BatcherHarness) -> None:
    running = harness.block_with(1)
    assert not running.cancel()
    harness.engine.gate.set()
    assert values_of([running]) == [1]


def test_an_item_whose_deadline_passed_never_runs(harness: BatcherHarness) -> None:
    harness.block_with(1)
    late = harness.batcher.submit(harness.engine, item_of(2), time.monotonic())
    after = harness.submit(3)
    harness.engine.gate.set()
    assert values_of(after) == [3]
    with pytest.raises(DeadlinePassed):
        late.result(TIMEOUT_S)
    assert harness.engine.batches == [[1], [3]]


def test_a_bad_item_does_not_affect_the_rest_of_its_batch(harness: BatcherHarness) -> None:
    harness.engine.error_of = lambda values: ValueError("two") if 2 in values else None
    harness.block_with(5)
    one, two, three = harness.submit(1, 2, 3)
    after = harness.submit(4)
    harness.engine.gate.set()
    assert values_of([one, three, *after]) == [1, 3, 4]
    with pytest.raises(ModelFailure):
        two.result(TIMEOUT_S)
    assert harness.engine.batches == [[5], [1, 2, 3], [1], [2], [3], [4]]


def test_every_batch_is_reported_with_its_model_rows_items_and_seconds(
    harness: BatcherHarness,
) -> None:
    harness.block_with(6)
    later = harness.submit(1, 2)
    harness.engine.gate.set()
    values_of(later)
    assert [(run.model, run.rows) for run in harness.runs] == [("fake", 6), ("fake", 3)]
    assert all(run.seconds >= 0 for run in harness.runs)


def test_a_lost_device_ends_all_inference_and_is_reported_once(harness: BatcherHarness) -> None:
    lost = DeviceFailed("CUDA error: an illegal memory access was encountered")
    harness.engine.error_of = lambda _: lost
    with harness.queue.reserve("a", harness.engine, 1) as (decoding,):
        running = harness.block_with(6)
        waiting = harness.submit(1, 2, 3, 6)
        harness.engine.gate.set()
        assert harness.failed.wait(TIMEOUT_S)
        for future in (running, *waiting):
            with pytest.raises(NotReady):
                future.result(TIMEOUT_S)
        with pytest.raises(NotReady):
            harness.queue.enqueue(decoding, item_of(1), NO_DEADLINE)
    with pytest.raises(NotReady):
        harness.submit(1)
    with pytest.raises(NotReady), harness.queue.reserve("a", harness.engine, 1):
        pass
    assert harness.engine.batches == [[6]]
    assert harness.fatal == [lost]


def test_a_hung_pass_is_a_lost_device() -> None:
    harness = BatcherHarness(max_batch_s=0.05)
    with harness.batcher.running():
        hung = harness.block_with(6)
        waiting = harness.submit(1)
        assert harness.failed.wait(TIMEOUT_S)
        for future in (hung, *waiting):
            with pytest.raises(NotReady):
                future.result(TIMEOUT_S)
        assert not harness.engine.gate.is_set()
    harness.engine.gate.set()  # the late end of the hung pass has no effect
    assert len(harness.fatal) == 1
    assert "0.05 s" in str(harness.fatal[0])


def test_closing_runs_the_accepted_items_and_refuses_new_ones() -> None:
    harness = BatcherHarness()
    futures = []
    refused = threading.Event()

    def submit_until_refused() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not refused.is_set() and time.monotonic() < deadline:
            try:
                futures.extend(harness.submit(3))
            except NotReady:
                refused.set()
        harness.engine.gate.set()

    with harness.batcher.running():
        futures.append(harness.block_with(5))
        futures += harness.submit(4, 4, 4)
        thread = threading.Thread(target=submit_until_refused)
        thread.start()
    assert refused.is_set()
    thread.join(TIMEOUT_S)
    assert values_of(futures)[:4] == [5, 4, 4, 4]


def test_leaving_the_context_ends_all_threads_even_after_an_error() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), BatcherHarness().batcher.running():
        assert threading.active_count() == before + 2
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_result_has_the_times_in_the_queue_and_in_the_batch(harness: BatcherHarness) -> None:
    started = time.monotonic()
    first = harness.block_with(6)
    second = harness.submit(2)[0]
    blocked_from = time.monotonic()
    threading.Event().wait(0.1)
    blocked_s = time.monotonic() - blocked_from
    harness.engine.gate.set()
    one, two = first.result(TIMEOUT_S), second.result(TIMEOUT_S)
    total_s = time.monotonic() - started
    assert blocked_s <= one.ran_s <= total_s
    assert blocked_s <= two.queued_s <= total_s
    assert 0 <= one.queued_s <= total_s - one.ran_s
    assert 0 <= two.ran_s <= total_s - two.queued_s


def test_workers_run_at_the_same_time_and_do_not_wait_for_each_other() -> None:
    harness = BatcherHarness(workers=2)
    fast = FakeEngine("fast")
    with harness.batcher.running():
        blocked = harness.block_with(6)
        for value in (1, 2, 3):
            future = harness.batcher.submit(fast, item_of(value), NO_DEADLINE)  # type: ignore[arg-type]
            assert values_of([future]) == [value]
        assert not blocked.done()
        harness.engine.gate.set()
        assert values_of([blocked]) == [6]


def test_all_workers_finish_the_accepted_items_on_shutdown() -> None:
    harness = BatcherHarness(workers=3)
    with harness.batcher.running():
        accepted = harness.submit(*range(1, 30))
    assert values_of(accepted) == list(range(1, 30))


def test_a_device_lost_in_one_worker_ends_the_others() -> None:
    harness = BatcherHarness(workers=2)
    lost, failing = DeviceFailed("CUDA error: lost"), FakeEngine("failing")
    failing.error_of = lambda _: lost
    with harness.batcher.running():
        blocked = harness.block_with(6)
        future = harness.batcher.submit(failing, item_of(1), NO_DEADLINE)  # type: ignore[arg-type]
        for failed in (future, blocked):
            with pytest.raises(NotReady):
                failed.result(TIMEOUT_S)
        harness.engine.gate.set()
    assert harness.fatal == [lost]


def test_a_hung_pass_in_one_worker_is_a_lost_device_while_another_worker_runs() -> None:
    harness = BatcherHarness(workers=2, max_batch_s=0.05)
    fast = FakeEngine("fast")
    with harness.batcher.running():
        hung = harness.block_with(6)
        while not harness.failed.is_set():
            try:
                future = harness.batcher.submit(fast, item_of(1), NO_DEADLINE)  # type: ignore[arg-type]
                future.result(TIMEOUT_S)
            except NotReady:
                break
        with pytest.raises(NotReady):
            hung.result(TIMEOUT_S)
    harness.engine.gate.set()
    assert len(harness.fatal) == 1
