"""The request queue alone: capacity by rows and by time, order, rounds, estimates and shutdown."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from service.fair_sharing import ShareExceeded
from service.inference.queue import Batch, RequestQueue, Ticket
from service.inference.queue_cost import LinearCost, ThroughputEstimate
from service.settings import ServiceSettings
from tests.problems import raises_problem
from tests.service.fake_engine import (
    MAX_PASS_MS,
    NO_DEADLINE,
    TIMEOUT_S,
    FakeClock,
    FakeEngine,
    item_of,
)


def batch_of(engine: Any, rows: int) -> Batch:
    return Batch([Ticket(engine, rows)])


def run_batch(
    throughput: ThroughputEstimate, clock: FakeClock, engine: Any, rows: int, seconds: float
) -> None:
    """Runs one batch alone."""
    running = batch_of(engine, rows)
    throughput.start(running)
    clock.now_s += seconds
    throughput.finish(running)


def cost_of(*batches: tuple[int, float]) -> LinearCost:
    """The cost learned from batches of (rows, seconds)."""
    cost = LinearCost()
    for rows, seconds in batches:
        cost.add(rows, seconds)
    return cost


@pytest.mark.parametrize(("per_batch", "per_row"), [(0.02, 0.008), (0.01, 0.0), (0.0, 0.01)])
def test_fixed_and_per_row_costs_are_separated(per_batch, per_row) -> None:
    cost = cost_of(*((rows, per_batch + per_row * rows) for rows in (2, 8, 128, 4)))
    assert cost.seconds(128, 1) == pytest.approx(per_batch + 128 * per_row)
    assert cost.seconds(1000, 8) == pytest.approx(8 * per_batch + 1000 * per_row)


def test_batches_of_equal_size_give_a_cost_per_row() -> None:
    cost = cost_of(*[(10, 5.0)] * 3)
    assert cost.seconds(10, 1) == pytest.approx(5)
    assert cost.seconds(4, 1) == pytest.approx(2)


@pytest.mark.parametrize("batches", [[(2, 1.0), (8, 0.5)], [(2, 0.1), (8, 2.0)]])
def test_neither_cost_is_negative(batches) -> None:
    cost = cost_of(*batches)
    assert cost.seconds(0, 1) >= 0
    assert cost.seconds(1, 1) <= cost.seconds(100, 1)
    assert cost.seconds(100, 0) >= 0


def test_a_single_slow_batch_has_little_weight_and_is_forgotten() -> None:
    cost = cost_of(*[(2, 0.02)] * 20, (2, 60.0))
    assert cost.seconds(2, 1) < 0.03
    for _ in range(50):
        cost.add(2, 0.02)
    assert cost.seconds(2, 1) == pytest.approx(0.02, rel=0.01)


def test_batches_that_run_at_the_same_time_share_the_device_equally() -> None:
    clock = FakeClock()
    engine: Any = FakeEngine()
    throughput = ThroughputEstimate(clock)
    long, short = batch_of(engine, 30), batch_of(engine, 10)
    throughput.start(long)
    clock.now_s = 1.0
    throughput.start(short)
    clock.now_s = 3.0
    throughput.finish(short)  # 1 s of device time within 2 s
    clock.now_s = 4.0
    throughput.finish(long)  # the other 3 s
    assert throughput.seconds(engine, 30, 1) == pytest.approx(3)
    assert throughput.seconds(engine, 10, 1) == pytest.approx(1)


def test_the_estimate_does_not_keep_a_replaced_engine_in_memory() -> None:
    clock = FakeClock()
    engine: Any = FakeEngine()
    throughput = ThroughputEstimate(clock)
    run_batch(throughput, clock, engine, 1, 1.0)
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None


A, B = "client a", "client b"


def queue_of(clock: FakeClock, workers: int = 1, **settings: Any) -> RequestQueue:
    """A queue with batches of six rows that admits five seconds of work by default."""
    limits = {"max_batch_rows": 6, "max_waiting_rows": 1000, "max_pass_ms": MAX_PASS_MS}
    chosen = {**limits, "deadline_s": 5 / 0.8, **settings}
    return RequestQueue(ServiceSettings(**chosen), workers, clock)


def enqueue(queue: RequestQueue, engine: Any, value: int, client: str = A) -> Ticket:
    """Adds an item of `value` rows without a reservation, by default of `A`."""
    ticket = Ticket(engine, value, client)
    queue.enqueue(ticket, item_of(value), NO_DEADLINE)
    return ticket


def start_batch(queue: RequestQueue) -> Batch:
    batch = queue.next_batch()
    assert batch is not None
    return batch


def run_next(queue: RequestQueue, clock: FakeClock, seconds: float = 0.1) -> list[Ticket]:
    """Runs the next batch in `seconds` and returns its tickets."""
    batch = start_batch(queue)
    clock.now_s += seconds
    queue.finish(batch)
    return batch.tickets


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine() -> Any:
    return FakeEngine()


@pytest.fixture
def reserved() -> ExitStack:
    """Holds the reservations of a test."""
    return ExitStack()


def test_a_client_holds_at_most_as_many_rows_as_it_leaves_free(engine, clock, reserved) -> None:
    queue = queue_of(clock, max_waiting_rows=30)
    reserved.enter_context(queue.reserve(A, engine, [4] * 2))
    queue.check_capacity(A, 7)  # 8 + 8 rows, and twice 7
    with raises_problem("overloaded"):
        queue.check_capacity(A, 8)
    with raises_problem("overloaded"), queue.reserve(A, engine, [1] * 8):
        pass
    queue.check_capacity(B, 10)
    assert (queue.rows, queue.items) == (8, 2)


def test_a_client_above_its_share_among_others_is_told_so(engine, clock) -> None:
    queue = queue_of(clock, max_waiting_rows=12)

    def is_told(client: str) -> bool:
        with raises_problem("overloaded") as raised:
            queue.check_capacity(client, 12)
        return isinstance(raised.value, ShareExceeded)

    with queue.reserve(A, engine, [6]):
        assert not is_told(A)  # the only client may use everything
        with queue.reserve(B, engine, [1]):
            assert (is_told(A), is_told(B)) == (True, False)
        assert (is_told(A), is_told(B)) == (True, False)  # B was active just now


def test_an_empty_queue_admits_an_item_of_any_size_and_then_other_clients(engine, clock) -> None:
    queue = queue_of(clock, max_waiting_rows=12)
    with queue.reserve(A, engine, [400]):
        with raises_problem("overloaded"), queue.reserve(A, engine, [2]):
            pass
        queue.check_capacity(B, 2)


def test_a_request_is_refused_if_it_cannot_run_within_the_deadline(engine, clock, reserved) -> None:
    queue = queue_of(clock)
    enqueue(queue, engine, 2)
    run_next(queue, clock, seconds=2)  # one second per row
    reserved.enter_context(queue.reserve(A, engine, [4]))
    queue.check_capacity(A, 1, engine)
    with raises_problem("overloaded") as raised:
        queue.check_capacity(A, 2, engine)
    assert raised.value.retry_after_s == pytest.approx(4)
    reserved.enter_context(queue.reserve(A, engine, [1]))
    assert queue.wait_s(A) == pytest.approx(5)
    with raises_problem("overloaded"), queue.reserve(A, engine, [1]):
        pass


def test_a_long_backlog_of_one_client_does_not_refuse_or_delay_another(
    engine, clock, reserved
) -> None:
    queue = queue_of(clock)
    enqueue(queue, engine, 2)
    run_next(queue, clock, seconds=2)  # one second per row
    tickets = reserved.enter_context(queue.reserve(A, engine, [1] * 5))
    for ticket in tickets:
        queue.enqueue(ticket, item_of(1), NO_DEADLINE)
    with raises_problem("overloaded"):
        queue.check_capacity(A, 1, engine)
    assert queue.wait_s(B, 1, engine) == pytest.approx(2)
    queue.check_capacity(B, 2, engine)
    single = enqueue(queue, engine, 1, B)
    assert single in run_next(queue, clock)


def test_sixteen_clients_of_a_slow_machine_are_never_refused_with_default_settings(
    engine, clock
) -> None:
    """Each client sends its next request when it gets a response; 0.25 s per request."""
    queue = RequestQueue(ServiceSettings(), 1, clock)
    engine.max_rows_per_pass = 8  # no batch holds two requests
    rows, seconds = 8, 0.25
    enqueue(queue, engine, rows)
    run_next(queue, clock, seconds)
    with ExitStack() as requests:
        for _ in range(16):
            (ticket,) = requests.enter_context(queue.reserve(A, engine, [rows]))
            queue.enqueue(ticket, item_of(rows), NO_DEADLINE)
        for _ in range(100):
            assert queue.wait_s(A) == pytest.approx(16 * seconds)
            assert len(run_next(queue, clock, seconds)) == 1
            (ticket,) = requests.enter_context(queue.reserve(A, engine, [rows]))
            queue.enqueue(ticket, item_of(rows), NO_DEADLINE)


def test_the_wait_includes_running_batches_and_the_cost_of_each_engine(engine, clock) -> None:
    queue, other = queue_of(clock), FakeEngine()
    for chosen, seconds in ((engine, 1.0), (other, 10.0)):
        enqueue(queue, chosen, 1)
        run_next(queue, clock, seconds)
    assert queue.wait_s(A) == 0
    enqueue(queue, engine, 2)
    enqueue(queue, other, 1)
    assert queue.wait_s(A) == pytest.approx(12)
    running = start_batch(queue)
    assert (running.served, queue.rows) == (engine, 1)
    assert queue.wait_s(A) == pytest.approx(12)
    clock.now_s += 1.5
    assert queue.wait_s(A) == pytest.approx(10.5)
    clock.now_s += 1.5  # longer than estimated
    assert queue.wait_s(A) == pytest.approx(10)
    queue.finish(running)
    assert queue.wait_s(A) == pytest.approx(10)


def test_the_wait_includes_the_fixed_cost_of_each_batch(engine, clock, reserved) -> None:
    queue = queue_of(clock)
    for rows in (1, 6):
        enqueue(queue, engine, rows)
        run_next(queue, clock, seconds=2)  # two seconds per batch of any size
    reserved.enter_context(queue.reserve(A, engine, [1] * 6))
    assert queue.wait_s(A) == pytest.approx(2)
    reserved.enter_context(queue.reserve(A, engine, [1]))
    assert queue.wait_s(A) == pytest.approx(4)


def test_the_wait_counts_one_batch_for_a_request_that_exceeds_the_limit_of_a_batch(
    engine, clock, reserved
) -> None:
    queue = queue_of(clock, max_pass_ms=50)
    for rows, seconds in ((4, 0.2), (8, 0.25)):  # 150 ms for a batch and 12.5 ms for a row
        enqueue(queue, engine, rows)
        run_next(queue, clock, seconds)
    assert queue.wait_s(A, 3 * 8, engine, count=3) == pytest.approx(3 * 0.25)
    for count in range(1, 17):
        reserved.enter_context(queue.reserve(A, engine, [8]))
        assert queue.wait_s(A) == pytest.approx(count * 0.25)


def test_a_batch_holds_one_engine_and_leaves_the_others_in_order(engine, clock) -> None:
    queue, other = queue_of(clock), FakeEngine()
    first, second = enqueue(queue, engine, 2), enqueue(queue, other, 2)
    third, fourth = enqueue(queue, engine, 2), enqueue(queue, engine, 4)
    assert run_next(queue, clock) == [first, third]
    assert run_next(queue, clock) == [second]
    assert run_next(queue, clock) == [fourth]


def test_a_closed_queue_refuses_items_and_ends_once_it_is_empty(engine, clock) -> None:
    queue = queue_of(clock)
    last = enqueue(queue, engine, 1)
    queue.close()
    with raises_problem("not_ready", match="stopping"):
        queue.check_capacity(A)
    with raises_problem("not_ready", match="stopping"), queue.reserve(A, engine, [1]):
        pass
    assert run_next(queue, clock) == [last]
    assert queue.next_batch() is None


def test_a_worker_leaves_an_equal_part_of_the_rows_to_the_others(engine, clock) -> None:
    queue = queue_of(clock, workers=2, max_batch_rows=100)
    tickets = [enqueue(queue, engine, 1) for _ in range(5)]
    batches = [start_batch(queue).tickets for _ in range(3)]
    assert batches == [tickets[:3], tickets[3:4], tickets[4:]]


def test_a_batch_has_at_most_the_rows_that_the_engine_runs_at_once(engine, clock) -> None:
    queue = queue_of(clock, workers=2, max_batch_rows=100)
    engine.max_rows_per_pass = 6
    tickets = [enqueue(queue, engine, 1) for _ in range(18)]
    large = enqueue(queue, engine, 50)
    batches = [start_batch(queue).tickets for _ in range(4)]
    assert batches == [tickets[:6], tickets[6:12], tickets[12:], [large]]


def test_a_later_round_precedes_the_other_items_of_its_client(engine, clock, reserved) -> None:
    queue = queue_of(clock, max_batch_rows=4)
    first, second = reserved.enter_context(queue.reserve(A, engine, [2, 2]))
    queue.enqueue(first, item_of(2), NO_DEADLINE)
    newer = [enqueue(queue, engine, 2), enqueue(queue, engine, 2)]
    assert start_batch(queue).tickets == [first, newer[0]]
    queue.enqueue(second, item_of(2), NO_DEADLINE, queued_at=first.queued_at)
    third = enqueue(queue, engine, 2)
    assert start_batch(queue).tickets == [second, newer[1]]
    assert start_batch(queue).tickets == [third]


def test_a_batch_is_limited_by_its_estimated_time_while_another_client_is_active(
    engine, clock, reserved
) -> None:
    queue = queue_of(clock, max_pass_ms=50)
    tickets = [enqueue(queue, engine, 1) for _ in range(15)]
    assert run_next(queue, clock, seconds=0.1) == tickets[:6]
    assert run_next(queue, clock, seconds=0.1) == tickets[6:12]  # alone, up to 400 ms
    (other,) = reserved.enter_context(queue.reserve(B, engine, [100]))
    assert run_next(queue, clock, seconds=0.05) == tickets[12:15]
    queue.enqueue(other, item_of(100), NO_DEADLINE)
    assert run_next(queue, clock, 1) == [other]  # a larger item runs alone


def test_the_last_free_worker_is_kept_for_clients_that_have_none(engine, clock, reserved) -> None:
    queue = queue_of(clock, workers=2, max_batch_rows=2)
    for ticket in reserved.enter_context(queue.reserve(A, engine, [1] * 8)):
        queue.enqueue(ticket, item_of(1), NO_DEADLINE)
    alone = [start_batch(queue), start_batch(queue)]
    queue.finish(alone[0])
    (single,) = reserved.enter_context(queue.reserve(B, engine, [1]))  # its image is decoded
    with ThreadPoolExecutor(1) as worker:
        waiting = worker.submit(queue.next_batch)
        queue.enqueue(single, item_of(1), NO_DEADLINE)
        first = waiting.result(TIMEOUT_S)
        assert first is not None
        assert first.tickets == [single]
        queue.finish(first)
        waiting = worker.submit(queue.next_batch)
        queue.finish(alone[1])
        second = waiting.result(TIMEOUT_S)
        assert second is not None
        assert second.clients == {A}


def test_rows_of_later_rounds_are_reserved_until_the_ticket_is_released(engine, clock) -> None:
    queue = queue_of(clock, max_waiting_rows=20)
    with queue.reserve(A, engine, [2, 2, 4]) as rounds:
        for ticket in rounds[:2]:
            queue.enqueue(ticket, item_of(2), NO_DEADLINE)
        assert (queue.rows, queue.items) == (8, 3)
        assert run_next(queue, clock) == rounds[:2]
        assert (queue.rows, queue.items) == (4, 1)
        with raises_problem("overloaded"):
            queue.check_capacity(A, 7)
        queue.release(rounds[2])
    assert (queue.rows, queue.items) == (0, 0)


def test_a_pass_of_a_client_with_more_work_leaves_cores_to_active_clients(
    engine, clock, reserved
) -> None:
    queue = queue_of(clock, workers=2, max_batch_rows=1)
    batch = reserved.enter_context(queue.reserve(A, engine, [1] * 3))
    for ticket in batch[:2]:
        queue.enqueue(ticket, item_of(1), NO_DEADLINE)
    first = start_batch(queue)
    assert not first.leaves_cores  # no other client is active
    queue.finish(first)
    (single,) = reserved.enter_context(queue.reserve(B, engine, [1]))
    second = start_batch(queue)
    assert (second.clients, second.leaves_cores) == ({A}, True)
    queue.enqueue(single, item_of(1), NO_DEADLINE)
    third = start_batch(queue)
    assert (third.clients, third.leaves_cores) == ({B}, False)
