"""The queue alone: its bounds by rows and time, and who gets a place in it."""

from typing import Any

import pytest

from eulerlora_client.contract.problems import NotReady, Overloaded
from service.inference.queue import WaitingRoom
from service.inference.throughput import Pace
from service.inference.ticket import Batch, Place
from service.settings import ServiceSettings
from tests.service.stage import LATER, Clock, Numbers, number


def room_of(clock: Clock, lanes: int = 1, **settings: Any) -> WaitingRoom:
    """A room whose batches have six rows and which holds five seconds of work, or as set."""
    chosen = {"max_batch_rows": 6, "max_waiting_rows": 1000, "max_wait_s": 5, **settings}
    return WaitingRoom(ServiceSettings(**chosen), lanes, Pace(clock))


def asked(room: WaitingRoom, engine: Any, value: int) -> Place:
    (place,) = room.enter(engine, value)
    room.ask(place, number(value), LATER)
    return place


def ran(room: WaitingRoom, clock: Clock, seconds: float = 0.1) -> list[Place]:
    """The next batch, which took so many seconds."""
    batch = begun(room)
    clock.now_s += seconds
    room.ended(batch)
    return batch.places


def begun(room: WaitingRoom) -> Batch:
    """The next batch."""
    batch = room.next_batch()
    assert batch is not None
    return batch


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine() -> Any:
    return Numbers()


def test_the_room_is_full_by_rows(engine, clock) -> None:
    room = room_of(clock, max_waiting_rows=10)
    room.enter(engine, 4, count=2)
    room.check(2)
    with pytest.raises(Overloaded):
        room.check(3)
    with pytest.raises(Overloaded):
        room.enter(engine, 1, count=3)
    assert (room.rows, room.questions) == (8, 2)
    assert room.load() == 0.8


def test_an_empty_room_lets_any_question_in(engine, clock) -> None:
    room = room_of(clock, max_waiting_rows=10)
    room.enter(engine, 400)
    with pytest.raises(Overloaded):
        room.enter(engine, 1)


def test_the_room_is_full_by_time_and_tells_when_to_come_again(engine, clock) -> None:
    room = room_of(clock)
    asked(room, engine, 2)
    ran(room, clock, seconds=2)  # a second for each row
    room.enter(engine, 4)
    room.check(100)  # what counts is the wait before, not the work to come
    room.enter(engine, 2)
    assert room.wait_s() == pytest.approx(6)
    assert room.load() == pytest.approx(1.2)
    with pytest.raises(Overloaded) as raised:
        room.check(1)
    assert raised.value.retry_after_s == pytest.approx(6)


def test_the_wait_counts_what_runs_and_every_engine_at_its_own_pace(engine, clock) -> None:
    room, other = room_of(clock), Numbers()
    for each, seconds in ((engine, 1.0), (other, 10.0)):
        asked(room, each, 1)
        ran(room, clock, seconds)
    assert room.wait_s() == 0
    asked(room, engine, 2)
    asked(room, other, 1)
    assert room.wait_s() == pytest.approx(12)
    runs = begun(room)
    assert (room.rows, room.wait_s()) == (1, pytest.approx(12))
    clock.now_s += 1.5
    assert room.wait_s() == pytest.approx(10.5)
    room.ended(runs)
    assert room.wait_s() == pytest.approx(10)


def test_who_leaves_gives_the_rows_back_and_is_never_run(engine, clock) -> None:
    room = room_of(clock, max_waiting_rows=10)
    (decoding,) = room.enter(engine, 3)
    gone, patient = asked(room, engine, 4), asked(room, engine, 1)
    room.leave(decoding)
    room.leave(gone)
    room.leave(gone)
    assert room.rows == 1
    assert gone.future.cancelled()
    assert ran(room, clock) == [patient]
    room.leave(patient)
    assert room.rows == 0


def test_a_batch_of_one_engine_leaves_the_others_in_the_order_they_came(engine, clock) -> None:
    room, other = room_of(clock), Numbers()
    first, second = asked(room, engine, 2), asked(room, other, 2)
    third, fourth = asked(room, engine, 2), asked(room, engine, 4)
    assert [ran(room, clock) for _ in range(3)] == [[first, third], [second], [fourth]]


def test_a_closed_room_lets_nobody_in_and_ends_once_it_is_empty(engine, clock) -> None:
    room = room_of(clock)
    last = asked(room, engine, 1)
    room.close()
    for refused in (lambda: room.check(1), lambda: room.enter(engine, 1)):
        with pytest.raises(NotReady, match="stopping"):
            refused()
    assert ran(room, clock) == [last]
    assert room.next_batch() is None


def test_leaving_after_the_answer_takes_no_time_for_the_words_of_a_tensor(engine, clock) -> None:
    room = room_of(clock, max_waiting_rows=10)
    place = asked(room, engine, 2)
    assert ran(room, clock) == [place]
    assert "tensor" not in repr(place)
    room.leave(place)
    assert not place.future.cancelled()


def test_each_batch_to_come_is_waited_for_not_only_its_rows(engine, clock) -> None:
    room = room_of(clock)
    for rows in (1, 6):
        asked(room, engine, rows)
        ran(room, clock, seconds=2)  # a batch takes two seconds, whatever is in it
    room.enter(engine, 1, count=6)
    assert room.wait_s() == pytest.approx(2)
    room.enter(engine, 1)
    assert room.wait_s() == pytest.approx(4)


def test_a_lane_leaves_the_others_their_share_of_what_waits(engine, clock) -> None:
    room = room_of(clock, lanes=2, max_batch_rows=100)
    places = [asked(room, engine, 1) for _ in range(5)]
    assert [begun(room).places for _ in range(3)] == [places[:3], places[3:4], places[4:]]


def test_lanes_share_the_rows_that_an_engine_passes_at_once(engine, clock) -> None:
    room = room_of(clock, lanes=2, max_batch_rows=100)
    engine.rows_at_once = 6
    places = [asked(room, engine, 1) for _ in range(18)]
    large = asked(room, engine, 50)
    assert begun(room).places == places[:3]
    later = [begun(room).places for _ in range(6)]
    assert later[0] == places[3:6]
    assert later[-1] == [large]


def test_batches_of_several_lanes_end_in_any_order(engine, clock) -> None:
    room = room_of(clock, lanes=2)
    asked(room, engine, 1)
    asked(room, engine, 1)
    first, second = begun(room), begun(room)
    clock.now_s += 2
    room.ended(second)
    room.ended(first)
    asked(room, engine, 1)
    assert room.wait_s() == pytest.approx(1)


def test_a_later_round_stands_where_its_first_one_stood_and_joins_who_waits(engine, clock) -> None:
    room = room_of(clock, max_batch_rows=4)
    (whole,) = room.enter(engine, 10)
    first = room.part(whole, 2)
    room.ask(first, number(2), LATER)
    since = first.since
    newer = [asked(room, engine, 2), asked(room, engine, 2)]
    assert begun(room).places == [first, newer[0]]
    second = room.part(whole, 2)
    room.ask(second, number(2), LATER, since)
    third = asked(room, engine, 2)
    assert begun(room).places == [second, newer[1]]
    assert begun(room).places == [third]


def test_rows_of_later_rounds_count_until_their_place_is_left(engine, clock) -> None:
    room = room_of(clock, max_waiting_rows=10)
    (whole,) = room.enter(engine, 5)
    parts = []
    for rows in (2, 2, 4):
        parts.append(room.part(whole, rows))
        room.ask(parts[-1], number(rows), LATER)
    assert (room.rows, room.questions) == (8, 1)  # more than it was thought to take
    assert ran(room, clock) == parts[:2]
    assert (room.rows, room.questions) == (4, 1)
    with pytest.raises(Overloaded):
        room.enter(engine, 7)
    for place in (parts[2], whole):
        room.leave(place)
    assert (room.rows, room.questions) == (0, 0)
