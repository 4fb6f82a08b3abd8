"""The queue alone: its bounds by rows and time, and who gets a place in it."""

from typing import Any

import pytest

from service.errors import NotReady, Overloaded
from service.place import Place
from service.waiting_room import WaitingRoom
from tests.service.stage import LATER, Numbers, number


def asked(room: WaitingRoom, engine: Any, value: int) -> Place:
    (place,) = room.enter(engine, value)
    room.ask(place, number(value), LATER)
    return place


def ran(room: WaitingRoom, seconds: float, max_rows: int = 6) -> list[Place]:
    """The next batch, which took so many seconds."""
    batch = room.next_batch(max_rows)
    room.ended(seconds)
    return batch


@pytest.fixture
def engine() -> Any:
    return Numbers()


def test_the_room_is_full_by_rows(engine) -> None:
    room = WaitingRoom(max_rows=10, max_wait_s=5)
    room.enter(engine, 4, count=2)
    room.check(2)
    with pytest.raises(Overloaded):
        room.check(3)
    with pytest.raises(Overloaded):
        room.enter(engine, 1, count=3)
    assert (room.rows, room.questions) == (8, 2)
    assert room.load() == 0.8


def test_an_empty_room_lets_any_question_in(engine) -> None:
    room = WaitingRoom(max_rows=10, max_wait_s=5)
    room.enter(engine, 400)
    with pytest.raises(Overloaded):
        room.enter(engine, 1)


def test_the_room_is_full_by_time_and_tells_when_to_come_again(engine) -> None:
    room = WaitingRoom(max_rows=1000, max_wait_s=5)
    asked(room, engine, 2)
    ran(room, seconds=2)  # a second for each row
    room.enter(engine, 4)
    room.check(100)  # what counts is the wait before, not the work to come
    room.enter(engine, 2)
    assert room.wait_s() == pytest.approx(6)
    assert room.load() == pytest.approx(1.2)
    with pytest.raises(Overloaded) as raised:
        room.check(1)
    assert raised.value.retry_after_s == pytest.approx(6)
    assert raised.value.headers()["Retry-After"] in ("6", "7")


def test_the_wait_counts_what_runs_and_every_engine_at_its_own_pace(engine) -> None:
    room, other = WaitingRoom(max_rows=1000, max_wait_s=5), Numbers()
    for each, seconds in ((engine, 1.0), (other, 10.0)):
        asked(room, each, 1)
        ran(room, seconds)
    assert room.wait_s() == 0
    asked(room, engine, 2)
    asked(room, other, 1)
    assert room.wait_s() == pytest.approx(12)
    assert len(room.next_batch(6)) == 1  # runs
    assert (room.rows, room.wait_s()) == (1, pytest.approx(12))
    room.ended(2)
    assert room.wait_s() == pytest.approx(10)


def test_who_leaves_gives_the_rows_back_and_is_never_run(engine) -> None:
    room = WaitingRoom(max_rows=10, max_wait_s=5)
    (decoding,) = room.enter(engine, 3)
    gone, patient = asked(room, engine, 4), asked(room, engine, 1)
    room.leave(decoding)
    room.leave(gone)
    room.leave(gone)
    assert room.rows == 1
    assert gone.future.cancelled()
    assert ran(room, 1) == [patient]
    room.leave(patient)
    assert room.rows == 0


def test_a_batch_of_one_engine_leaves_the_others_in_the_order_they_came(engine) -> None:
    room, other = WaitingRoom(max_rows=100, max_wait_s=5), Numbers()
    first, second = asked(room, engine, 2), asked(room, other, 2)
    third, fourth = asked(room, engine, 2), asked(room, engine, 4)
    assert [ran(room, 0.1) for _ in range(3)] == [[first, third], [second], [fourth]]


def test_a_closed_room_lets_nobody_in_and_ends_once_it_is_empty(engine) -> None:
    room = WaitingRoom(max_rows=100, max_wait_s=5)
    last = asked(room, engine, 1)
    room.close()
    for refused in (lambda: room.check(1), lambda: room.enter(engine, 1)):
        with pytest.raises(NotReady, match="stopping"):
            refused()
    assert ran(room, 0.1) == [last]
    assert room.next_batch(6) == []


def test_leaving_after_the_answer_takes_no_time_for_the_words_of_a_tensor(engine) -> None:
    room = WaitingRoom(max_rows=10, max_wait_s=5)
    place = asked(room, engine, 2)
    assert ran(room, 0.1) == [place]
    assert "tensor" not in repr(place)
    room.leave(place)
    assert not place.future.cancelled()
