"""Bounded concurrency, results in order, and cancellation."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from eulerlora_client.sdk.client import PREFETCH_FACTOR, map_ordered, map_ordered_async


class CountedCalls:
    """Counts concurrent calls; a call waits until `full` calls run."""

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


def test_threads_return_results_in_order_with_bounded_concurrency() -> None:
    calls = CountedCalls(3)
    assert list(map_ordered(calls, range(12), 3, threading.Event())) == [-i for i in range(12)]
    assert calls.most == 3


def test_tasks_return_results_in_order_with_bounded_concurrency() -> None:
    running, most = 0, 0

    async def call(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5 - item % 5):
            await asyncio.sleep(0)
        running -= 1
        return -item

    async def all_results() -> list[int]:
        return [result async for result in map_ordered_async(call, range(12), 3)]

    assert asyncio.run(all_results()) == [-i for i in range(12)]
    assert most == 3


def counted(taken: list[int]) -> Iterator[int]:
    for item in range(1_000):
        taken.append(item)
        yield item


def test_threads_consume_items_lazily_and_stop_with_the_caller() -> None:
    taken: list[int] = []
    cancelled = threading.Event()
    results = map_ordered(lambda item: item, counted(taken), 2, cancelled)
    assert next(results) == 0
    assert len(taken) <= PREFETCH_FACTOR * 2
    assert not cancelled.is_set()
    results.close()
    assert cancelled.is_set()


def test_tasks_consume_items_lazily_and_end_with_the_caller() -> None:
    taken: list[int] = []
    ended: list[int] = []

    async def call(item: int) -> int:
        try:
            if item:
                await asyncio.Event().wait()  # forever
            return item
        finally:
            ended.append(item)

    async def first() -> int:
        async with aclosing(map_ordered_async(call, counted(taken), 2)) as results:
            return await anext(results)

    assert asyncio.run(first()) == 0
    assert len(taken) <= PREFETCH_FACTOR * 2
    assert 1 in ended


def test_a_concurrency_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        next(map_ordered(str, [1], 0, threading.Event()))
