"""A client that leaves while its request is worked on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Cancels its block when the client leaves, and raises ClientDisconnect then.

    The request's body must have been read, for nobody else may wait for its messages.
    """
    with anyio.CancelScope() as scope:
        watching = asyncio.create_task(_watch(request, scope))
        try:
            yield
        finally:
            watching.cancel()
    if scope.cancelled_caught:
        raise ClientDisconnect


async def _watch(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
