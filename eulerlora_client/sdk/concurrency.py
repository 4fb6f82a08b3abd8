"""Many questions at a time, a bounded number of them, with their answers in order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

AHEAD = 2
"""Items in hand for each one that is asked about, so that a slow one does not idle the others."""


def in_order(
    ask: Callable[[Item], Outcome], items: Iterable[Item], concurrency: int, given_up: Event
) -> Generator[Outcome, None, None]:
    """What `ask` says of each item, in their order, from `concurrency` threads.

    Items are taken as they are wanted. When the caller stops, what has not begun is not asked,
    `given_up` is set, and what has begun is waited for.
    """
    threads = ThreadPoolExecutor(at_least_one(concurrency))
    waiting: deque[Future[Outcome]] = deque()
    try:
        for item in items:
            waiting.append(threads.submit(ask, item))
            while waiting and (len(waiting) >= AHEAD * concurrency or waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        given_up.set()
        threads.shutdown(cancel_futures=True)


async def in_order_async(
    ask: Callable[[Item], Awaitable[Outcome]], items: Iterable[Item], concurrency: int
) -> AsyncGenerator[Outcome, None]:
    """The same from tasks; they end when the caller stops."""
    free = asyncio.Semaphore(at_least_one(concurrency))
    waiting: deque[asyncio.Task[Outcome]] = deque()

    async def one(item: Item) -> Outcome:
        async with free:
            return await ask(item)

    try:
        for item in items:
            waiting.append(asyncio.create_task(one(item)))
            while waiting and (len(waiting) >= AHEAD * concurrency or waiting[0].done()):
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def at_least_one(concurrency: int) -> int:
    """The same number. Raises ValueError below one."""
    if concurrency < 1:
        raise ValueError(f"wanted a concurrency of at least 1, not {concurrency}")
    return concurrency
