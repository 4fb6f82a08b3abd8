"""Calls for many items with bounded concurrency; results in the order of the items."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

DEFAULT_CONCURRENCY = 8

PREFETCH_FACTOR = 2
"""Submitted items per concurrent call, so that one slow call does not idle the others."""


def map_ordered(
    function: Callable[[Item], Result], items: Iterable[Item], concurrency: int, cancelled: Event
) -> Generator[Result, None, None]:
    """Yields the result for each item, in order, from `concurrency` threads.

    Items are consumed lazily. When the caller stops, calls that have not started are cancelled,
    `cancelled` is set, and running calls are waited for.
    """
    threads = ThreadPoolExecutor(_checked(concurrency))
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(threads.submit(function, item))
            while pending and (len(pending) >= PREFETCH_FACTOR * concurrency or pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        cancelled.set()
        threads.shutdown(cancel_futures=True)


async def map_ordered_async(
    function: Callable[[Item], Awaitable[Result]], items: Iterable[Item], concurrency: int
) -> AsyncGenerator[Result, None]:
    """Yields the result for each item, in order, from tasks that end when the caller stops."""
    free = asyncio.Semaphore(_checked(concurrency))
    pending: deque[asyncio.Task[Result]] = deque()

    async def call(item: Item) -> Result:
        async with free:
            return await function(item)

    try:
        for item in items:
            pending.append(asyncio.create_task(call(item)))
            while pending and (len(pending) >= PREFETCH_FACTOR * concurrency or pending[0].done()):
                yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _checked(concurrency: int) -> int:
    if concurrency < 1:
        raise ValueError(f"expected a concurrency of at least 1, got {concurrency}")
    return concurrency
