"""SIGTERM under load: what becomes of the requests that the server had accepted."""

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
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.connection import Answer, Connection, NoAnswer
from benchmarks.service.load.request import post
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import Server, eulerlora_server
from benchmarks.service.server.process_tree import END_S

CPU = torch.device("cpu")
ROUNDS = 3  # answers for each client before the signal
MORE_S = 0.05  # load that goes on, for requests to be in every state at the signal


@dataclass(frozen=True)
class Sent:
    """A request that was sent whole, its answer, and when both were, in monotonic seconds.

    known: the connection had carried an answer before, so that the server had accepted it.
    """

    sent_s: float
    ended_s: float
    known: bool
    answer: Answer | None


@dataclass(frozen=True)
class End:
    """A server's end. accepted: the requests under way at the signal, sent whole before it and to
    the server's knowledge; later: those sent after it. seconds: from it until the process had gone.
    """

    accepted: list[Sent]
    later: list[Sent]
    status: int
    seconds: float

    @property
    def lost(self) -> int:
        """Accepted requests that got no answer, or one that is not their prediction."""
        return sum(each.answer is None or each.answer.status != 200 for each in self.accepted)


def sigterm(plan: Plan) -> Iterator[Reading]:
    """Accepted requests that are lost, and servers that do not end with status 0."""
    requests = [
        post(each, parameters=parameters("stoch")) for each in made_up_photographs(plan.photographs)
    ]
    ends = []
    for _ in range(plan.ends):
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
        name=f"SIGTERM under load, {plan.ends} times: accepted requests lost",
        what="sent whole before the signal on a connection that had carried answers; lost: not "
        "answered 200",
        unit="count",
        target=none,
        libraries=LIBRARIES,
    )
    losses = [float(end.lost) for end in ends]
    yield lost.reading(sum(losses), losses, CPU, sizes)
    unclean = Measurement(
        name=f"SIGTERM under load, {plan.ends} times: exit status other than 0",
        what="of the server's process",
        unit="count",
        target=none,
        libraries=LIBRARIES,
    )
    bad = [float(end.status != 0) for end in ends]
    yield unclean.reading(sum(bad), bad, CPU, sizes)


async def end_under_load(server: Server, requests: Sequence[bytes], clients: int) -> End:
    """Loads a server, sends it SIGTERM, and goes on until it has ended."""
    sent: list[Sent] = []
    asking = itertools.cycle(requests)

    async def client() -> None:
        connection = None
        while server.process.poll() is None:
            try:
                if connection is None or not connection.usable:
                    connection = await Connection.to(server.port)
                sent.append(await _asked(connection, next(asking)))
            except NoAnswer:  # refused or cut before the request was out
                connection = None
                await asyncio.sleep(MORE_S)

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    while len(sent) < ROUNDS * clients:
        await asyncio.sleep(MORE_S)
    await asyncio.sleep(MORE_S)
    signalled = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    status = await asyncio.to_thread(server.process.wait, END_S)
    ended = time.monotonic()
    await asyncio.gather(*tasks)
    under_way = [each for each in sent if each.known and each.sent_s < signalled < each.ended_s]
    later = [each for each in sent if each.sent_s >= signalled]
    return End(under_way, later, status, ended - signalled)


async def _asked(connection: Connection, request: bytes) -> Sent:
    known = connection.answered > 0
    await connection.send(request)
    sent, answer = time.monotonic(), None
    try:
        answer = await asyncio.wait_for(connection.answer(), END_S)
    except (NoAnswer, TimeoutError):  # a child of the server may hold the connection open
        connection.close()
    return Sent(sent, time.monotonic(), known, answer)


def _statuses(sent: Sequence[Sent]) -> Counter[str]:
    return Counter("none" if each.answer is None else str(each.answer.status) for each in sent)
