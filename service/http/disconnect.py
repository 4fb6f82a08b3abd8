"""Cancellation of a request when its client disconnects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Cancels its block when the client disconnects, and then raises ClientDisconnect.

    The body must have been read: this block consumes all further messages of the request.
    """
    try:
        async with asyncio.timeout(None) as timeout:  # expires on disconnect
            watcher = asyncio.create_task(_watch(request, timeout))
            try:
                yield
            finally:
                watcher.cancel()
    except TimeoutError as error:
        if timeout.expired():
            raise ClientDisconnect from error
        raise


async def _watch(request: Request, timeout: asyncio.Timeout) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    timeout.reschedule(asyncio.get_running_loop().time())
