"""Bounded concurrency, answers in order, an end when nobody listens."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from eulerlora_client.sdk.concurrency import PREFETCH_FACTOR, map_ordered, map_ordered_async


class Watched:
    """Counts how many calls run at the same time; each waits until `full` do."""

    def __init__(self, full: int) -> None:
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(full, timeout=60)
        self.running = self.most = 0

    def __call__(self, item: int) -> int:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.barrier.wait()
        with self.lock:
            self.running -= 1
        return -item


def test_threads_answer_in_order_and_no_more_run_than_were_describe_settings() -> None:
    watched = Watched(3)
    assert list(map_ordered(watched, range(12), 3, threading.Event())) == [-i for i in range(12)]
    assert watched.most == 3


def test_tasks_answer_in_order_and_no_more_run_than_were_describe_settings() -> None:
    running, most = 0, 0

    async def ask(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5 - item % 5):
            await asyncio.sleep(0)
        running -= 1
        return -item

    async def all_of_them() -> list[int]:
        return [each async for each in map_ordered_async(ask, range(12), 3)]

    assert asyncio.run(all_of_them()) == [-i for i in range(12)]
    assert most == 3


def counted(taken: list[int]) -> Iterator[int]:
    for item in range(1_000):
        taken.append(item)
        yield item


def test_threads_take_items_as_they_are_needed_and_stop_with_the_caller() -> None:
    taken: list[int] = []
    given_up = threading.Event()
    answers = map_ordered(lambda item: item, counted(taken), 2, given_up)
    assert next(answers) == 0
    assert len(taken) <= PREFETCH_FACTOR * 2
    assert not given_up.is_set()
    answers.close()
    assert given_up.is_set()


def test_tasks_take_items_as_they_are_needed_and_end_with_the_caller() -> None:
    taken: list[int] = []
    ended: list[int] = []

    async def ask(item: int) -> int:
        try:
            if item:
                await asyncio.Event().wait()  # for ever
            return item
        finally:
            ended.append(item)

    async def first() -> int:
        async with aclosing(map_ordered_async(ask, counted(taken), 2)) as answers:
            return await anext(answers)

    assert asyncio.run(first()) == 0
    assert len(taken) <= PREFETCH_FACTOR * 2
    assert 1 in ended


def test_less_than_one_at_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        next(map_ordered(str, [1], 0, threading.Event()))
