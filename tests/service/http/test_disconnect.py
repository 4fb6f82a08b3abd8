"""A block that ends when the client leaves."""

import asyncio
from typing import Any

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from service.http.disconnect import while_connected

TIMEOUT_S = 20


def request_of(left: asyncio.Event, *before: dict[str, Any]) -> Request:
    """A request whose client sends these messages and stays until `left` is set."""
    messages = list(before)

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await left.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


def test_a_block_whose_client_stays_is_not_disturbed() -> None:
    async def story() -> None:
        async with while_connected(request_of(asyncio.Event())):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1  # nobody watches any more

    asyncio.run(story())


def test_a_block_ends_where_it_waits_when_the_client_leaves() -> None:
    ended: list[str] = []

    async def story() -> None:
        left = asyncio.Event()
        empty = {"type": "http.request", "body": b"", "more_body": False}
        asyncio.get_running_loop().call_later(0.01, left.set)
        with pytest.raises(ClientDisconnect):
            async with while_connected(request_of(left, empty)):
                try:
                    await asyncio.sleep(TIMEOUT_S)
                finally:
                    ended.append("the block")

    asyncio.run(story())
    assert ended == ["the block"]


def test_an_error_of_the_block_is_told_as_it_is() -> None:
    async def story() -> None:
        with pytest.raises(ZeroDivisionError):
            async with while_connected(request_of(asyncio.Event())):
                raise ZeroDivisionError

    asyncio.run(story())


def test_a_cancelled_request_is_not_taken_for_one_whose_client_left() -> None:
    async def block(entered: asyncio.Event) -> None:
        async with while_connected(request_of(asyncio.Event())):
            entered.set()
            await asyncio.sleep(TIMEOUT_S)

    async def story() -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(block(entered))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
