"""SIGTERM under load: the share of accepted requests that get a response."""

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.connection import Connection, NoResponseError, Response
from benchmarks.service.load.request import post
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import Server, eulerlora_server
from benchmarks.service.server.process_tree import TERMINATE_TIMEOUT_S

CPU = torch.device("cpu")
RESPONSES_PER_CLIENT = 3  # before the signal
PAUSE_S = 0.05  # so that requests are in every state at the signal


@dataclass(frozen=True)
class Sent:
    """A completely sent request with its response, in monotonic time.

    accepted: the connection had carried a response before, so the server had accepted it.
    """

    sent_s: float
    ended_s: float
    accepted: bool
    response: Response | None


@dataclass(frozen=True)
class Termination:
    """Termination of a server under load.

    accepted: accepted requests without a response at the signal. later: requests sent after it.
    status: exit status. seconds: from the signal to the exit.
    """

    accepted: list[Sent]
    later: list[Sent]
    status: int
    seconds: float

    @property
    def lost(self) -> int:
        """Number of accepted requests without a response of status 200."""
        return sum(sent.response is None or sent.response.status != 200 for sent in self.accepted)


def sigterm(plan: Plan) -> Iterator[Reading]:
    """Measures lost accepted requests and exit statuses other than 0."""
    requests = [
        post(image, parameters=parameters("stoch")) for image in synthetic_images(plan.image_count)
    ]
    ends = []
    for _ in range(plan.terminations):
        with eulerlora_server(plan.options) as server:
            ends.append(asyncio.run(end_under_load(server, requests, plan.peer_clients)))
    sizes = {
        "clients": plan.peer_clients,
        "accepted": [len(end.accepted) for end in ends],
        "accepted_by_status": [_statuses(end.accepted) for end in ends],
        "later_by_status": [_statuses(end.later) for end in ends],
        "exit_statuses": [end.status for end in ends],
        "seconds_to_exit": [end.seconds for end in ends],
    }
    none = Target(bound="at most", value=0)
    lost = Measurement(
        name=f"SIGTERM under load, {plan.terminations} times: accepted requests lost",
        what="sent whole before the signal on a connection that had carried answers; lost: not "
        "answered 200",
        unit="count",
        target=none,
        libraries=LIBRARIES,
    )
    losses = [float(end.lost) for end in ends]
    yield lost.reading(sum(losses), losses, CPU, sizes)
    unclean = Measurement(
        name=f"SIGTERM under load, {plan.terminations} times: exit status other than 0",
        what="of the server's process",
        unit="count",
        target=none,
        libraries=LIBRARIES,
    )
    bad = [float(end.status != 0) for end in ends]
    yield unclean.reading(sum(bad), bad, CPU, sizes)


async def end_under_load(server: Server, requests: Sequence[bytes], clients: int) -> Termination:
    """Sends load to a server until it exits, and SIGTERM to the server meanwhile."""
    sent: list[Sent] = []
    cycle = itertools.cycle(requests)

    async def client() -> None:
        connection = None
        while server.process.poll() is None:
            try:
                if connection is None or not connection.usable:
                    connection = await Connection.to(server.port)
                sent.append(await _send(connection, next(cycle)))
            except NoResponseError:  # refused, or closed before the request was sent
                connection = None
                await asyncio.sleep(PAUSE_S)

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    while len(sent) < RESPONSES_PER_CLIENT * clients:
        await asyncio.sleep(PAUSE_S)
    await asyncio.sleep(PAUSE_S)
    signalled = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    status = await asyncio.to_thread(server.process.wait, TERMINATE_TIMEOUT_S)
    ended = time.monotonic()
    await asyncio.gather(*tasks)
    pending = [
        request
        for request in sent
        if request.accepted and request.sent_s < signalled < request.ended_s
    ]
    later = [request for request in sent if request.sent_s >= signalled]
    return Termination(pending, later, status, ended - signalled)


async def _send(connection: Connection, request: bytes) -> Sent:
    """Sends a request and waits for the response. Raises NoResponseError if it cannot be sent."""
    accepted = connection.responses > 0
    await connection.send(request)
    sent_s, response = time.monotonic(), None
    try:
        response = await asyncio.wait_for(connection.receive(), TERMINATE_TIMEOUT_S)
    except (NoResponseError, TimeoutError):  # a child of the server may hold the connection open
        connection.close()
    return Sent(sent_s, time.monotonic(), accepted, response)


def _statuses(sent: Sequence[Sent]) -> Counter[str]:
    return Counter(
        "none" if request.response is None else str(request.response.status) for request in sent
    )
