"""Work in threads that do not keep the process from ending."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

NAME = "loading"

Result = TypeVar("Result")


async def in_a_thread(work: Callable[[], Result]) -> Result:
    """The result of work in a thread of its own, which goes on when this is cancelled.

    The event loop's own threads would be waited for, and neither torch nor a disk can be
    interrupted.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=NAME, daemon=True).start()
    return await asyncio.wrap_future(future)


def still_loading() -> bool:
    """Whether such a thread is at work."""
    return any(each.name == NAME for each in threading.enumerate())
