"""Cancellation of a block when the client disconnects."""

import asyncio
from typing import Any

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from service.http.requests import while_connected

TIMEOUT_S = 120


def request_of(disconnected: asyncio.Event, *before: dict[str, Any]) -> Request:
    """Returns a request with these messages, whose client disconnects when the event is set."""
    messages = list(before)

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await disconnected.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


def test_a_connected_client_does_not_affect_the_block() -> None:
    async def scenario() -> None:
        async with while_connected(request_of(asyncio.Event())):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1  # the watcher has ended

    asyncio.run(scenario())


def test_a_disconnect_cancels_the_block() -> None:
    ended: list[str] = []

    async def scenario() -> None:
        disconnected = asyncio.Event()
        empty = {"type": "http.request", "body": b"", "more_body": False}
        asyncio.get_running_loop().call_later(0.01, disconnected.set)
        with pytest.raises(ClientDisconnect):
            async with while_connected(request_of(disconnected, empty)):
                try:
                    await asyncio.sleep(TIMEOUT_S)
                finally:
                    ended.append("the block")

    asyncio.run(scenario())
    assert ended == ["the block"]


def test_an_exception_in_the_block_is_raised_unchanged() -> None:
    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            async with while_connected(request_of(asyncio.Event())):
                raise ZeroDivisionError

    asyncio.run(scenario())


def test_cancellation_is_not_reported_as_a_disconnect() -> None:
    async def block(entered: asyncio.Event) -> None:
        async with while_connected(request_of(asyncio.Event())):
            entered.set()
            await asyncio.sleep(TIMEOUT_S)

    async def scenario() -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(block(entered))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
