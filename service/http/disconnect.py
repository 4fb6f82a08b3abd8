"""A client that leaves while its request is worked on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Cancels its block when the client leaves, and raises ClientDisconnect then.

    The request's body must have been read, for nobody else may wait for its messages.
    """
    try:
        async with asyncio.timeout(None) as end:  # which the client sets
            watching = asyncio.create_task(_watch(request, end))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError as error:
        if end.expired():
            raise ClientDisconnect from error
        raise


async def _watch(request: Request, end: asyncio.Timeout) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    end.reschedule(asyncio.get_running_loop().time())
