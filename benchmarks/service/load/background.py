"""Load in the background of a measurement, from threads of this process."""

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from benchmarks.service.load.closed_loop import RETRY_S, ClientSession

DRIP_S = 2.0  # below the time after which the service ends an upload that stalls


@contextmanager
def background_clients(port: int, requests: Sequence[bytes], clients: int) -> Iterator[None]:
    """Runs a closed loop of clients that send the requests in a cycle."""
    cycle = itertools.cycle(requests)

    async def load(ended: threading.Event) -> None:
        tasks = [asyncio.create_task(_client(port, cycle, ended)) for _ in range(clients)]
        while not ended.is_set():
            await asyncio.sleep(RETRY_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with _in_thread(lambda ended: asyncio.run(load(ended))):
        yield


@contextmanager
def dripping_uploads(port: int, head: bytes, count: int) -> Iterator[None]:
    """Sends the head of a request on `count` connections, and then a byte at a time."""

    def drip(ended: threading.Event) -> None:
        connections: list[socket.socket] = []
        while True:
            connections = [connection for connection in connections if _sends(connection, b"x")]
            while len(connections) < count:
                connections.append(socket.create_connection(("127.0.0.1", port)))
                connections[-1].sendall(head)
            if ended.wait(DRIP_S):
                break
        for connection in connections:
            connection.close()

    with _in_thread(drip):
        yield


async def _client(port: int, requests: Iterator[bytes], ended: threading.Event) -> None:
    session = ClientSession(port)
    try:
        while not ended.is_set():
            exchange = await session.send(next(requests))
            if exchange.status != 200:
                await asyncio.sleep(RETRY_S)
    finally:
        session.close()


def _sends(connection: socket.socket, data: bytes) -> bool:
    """Sends data; returns False and closes the connection if its peer has closed it."""
    with suppress(OSError):
        connection.sendall(data)
        return True
    connection.close()
    return False


@contextmanager
def _in_thread(run: Callable[[threading.Event], None]) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,), name="background")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
