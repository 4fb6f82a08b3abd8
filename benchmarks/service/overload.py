"""Load above the capacity: responses, refusals, memory growth and recovery.

The load is open: requests are sent at scheduled times (Poisson arrivals), independent of earlier
responses.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import torch

from benchmarks.results import Measurement, Result, at_least, at_most
from benchmarks.service.images import synthetic_images
from benchmarks.service.load import (
    Connection,
    Exchange,
    NoResponseError,
    Response,
    closed_loop,
    parameters,
    post,
    short_gc_pauses,
)
from benchmarks.service.plan import Plan
from benchmarks.service.server import eulerlora_server, growth, resident, sampled, status
from benchmarks.service.throughput import MODES

CPU = torch.device("cpu")
CLIENT_MARGIN_S = 5.0  # of a client's timeout over the deadline
SAMPLE_S = 1.0
WARMUP = 0.25  # share of the load's duration, in which queues and buffers fill
MAX_GROWTH = 0.02
OK, UNAVAILABLE = 200, 503
TIMEOUT_S = 60.0
PAUSE_S = 0.01
MAX_IDLE_S = 2.0  # below the 5 s after which uvicorn closes an idle connection


def overload(plan: Plan) -> Iterator[Result]:
    """Measures the share of timely responses and refusals, memory growth and recovery."""
    images = synthetic_images(plan.image_count)
    requests = [post(image, parameters=parameters(mode)) for image in images for mode in MODES]
    with eulerlora_server(plan.options) as server:
        capacity = closed_loop(server.port, requests, plan.clients, plan.capacity_responses).rate
        rate = plan.overload * capacity
        idle = resident(server.pid)
        cpu_start_s = time.process_time()
        with (
            short_gc_pauses(),
            sampled(server.pid, SAMPLE_S, resident) as samples,
            ThreadPoolExecutor() as executor,
        ):
            last_sent = threading.Event()
            recovered = executor.submit(_recovery, server.port, images[0], plan, last_sent)
            timeout_s = plan.deadline_s + CLIENT_MARGIN_S
            exchanges = asyncio.run(
                poisson_load(server.port, requests, rate, plan.overload_s, timeout_s, last_sent.set)
            )
            ready, predicts = recovered.result()
        client_share = (time.process_time() - cpu_start_s) / (samples[-1].at_s - samples[0].at_s)
    sizes = _sizes(exchanges) | {
        "capacity_answers_a_s": capacity,
        "asked_a_s": rate,
        "seconds": plan.overload_s,
        "deadline_s": plan.deadline_s,
        "refusal_s": plan.refusal_s,
        "clients_share_of_a_core": client_share,
        "rss_before": idle.rss,
        "rss_greatest": max(sample.rss for sample in samples),
    }
    load = f"{plan.overload:g} times the capacity for {plan.overload_s:g} s, Poisson arrivals"
    timely = [float(in_time(exchange, plan.deadline_s, plan.refusal_s)) for exchange in exchanges]
    share = Measurement(
        name=f"{load}: answered within {plan.deadline_s:g} s or refused within "
        f"{1000 * plan.refusal_s:g} ms",
        ours="by the client's clock, all requests",
        unit="share",
        target=at_least(1.0),
    )
    yield share.reading(float(np.mean(timely)), timely, CPU, sizes)
    grown = growth(samples, WARMUP * plan.overload_s)
    memory_growth = Measurement(
        name=f"{load}: memory growth after the first quarter",
        ours="RSS of the process tree; spread: of its samples, over the first",
        unit="share",
        target=at_most(MAX_GROWTH),
    )
    over_first = [sample.rss / idle.rss - 1 for sample in samples]
    yield memory_growth.reading(grown, over_first, CPU, sizes)
    recovery = Measurement(
        name=f"{load}: ready and answering again",
        ours=f"from the last request sent to a /readyz of at most {1000 * plan.refusal_s:g} ms and "
        "a /predict with an answer; spread: both",
        target=at_most(plan.ready_within_s),
    )
    yield recovery.reading(max(ready, predicts), [ready, predicts], CPU, sizes)


def _recovery(
    port: int, image: bytes, plan: Plan, last_sent: threading.Event
) -> tuple[float, float]:
    last_sent.wait()
    return recovery_seconds(port, image, plan.refusal_s)


def in_time(exchange: Exchange, deadline_s: float, refusal_s: float) -> bool:
    """True if a request succeeded within `deadline_s` or was refused within `refusal_s`."""
    if exchange.status == OK:
        return exchange.seconds <= deadline_s
    return exchange.status == UNAVAILABLE and exchange.seconds <= refusal_s


def _sizes(exchanges: Sequence[Exchange]) -> dict[str, object]:
    refusals = [exchange.seconds for exchange in exchanges if exchange.status == UNAVAILABLE]
    successes = [exchange.seconds for exchange in exchanges if exchange.status == OK]
    return {
        "requests": len(exchanges),
        "statuses": Counter(str(exchange.status) for exchange in exchanges),
        "answers_p99_s": float(np.percentile(successes, 99)) if successes else None,
        "refusals_p99_s": float(np.percentile(refusals, 99)) if refusals else None,
        "refusals_slowest_s": max(refusals, default=None),
    }


async def poisson_load(
    port: int,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    timeout_s: float,
    last_sent: Callable[[], object],
) -> list[Exchange]:
    """Sends random requests at `rate` per second for `seconds`; returns all exchanges.

    timeout_s: of a client. last_sent: called after the last request was sent. The time of an
    exchange counts from its scheduled time, even if the clients were late.
    """
    pool, generator, loop = _ConnectionPool(port), random.Random(1), asyncio.get_running_loop()

    async def send(request: bytes, scheduled_s: float) -> Exchange:
        response = None
        with suppress(NoResponseError, TimeoutError):
            response = await asyncio.wait_for(pool.exchange(request), timeout_s)
        return Exchange(scheduled_s, time.monotonic() - scheduled_s, response)

    sent: list[asyncio.Task[Exchange]] = []
    scheduled_s = time.monotonic()
    end_s = scheduled_s + seconds
    while (scheduled_s := scheduled_s + generator.expovariate(rate)) < end_s:
        await asyncio.sleep(scheduled_s - time.monotonic())
        sent.append(loop.create_task(send(generator.choice(requests), scheduled_s)))
    last_sent()
    exchanges = await asyncio.gather(*sent)
    pool.close()
    return exchanges


class _ConnectionPool:
    """Reuses idle connections, most recently used first."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def exchange(self, request: bytes) -> Response:
        connection = self._reusable() or await Connection.to(self._port)
        try:
            response = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def _reusable(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class NoRecoveryError(Exception):
    """The service did not recover in time."""


def recovery_seconds(port: int, image: bytes, probe_s: float) -> tuple[float, float]:
    """Returns the seconds to a /readyz with 200 within `probe_s`, and to a /predict with 200."""
    started = time.monotonic()
    while not _ready(port, probe_s):
        _pause(started)
    ready = time.monotonic() - started
    while status(port, "/predict", TIMEOUT_S, image) != OK:
        _pause(started)
    return ready, time.monotonic() - started


def _ready(port: int, probe_s: float) -> bool:
    sent_s = time.monotonic()
    return status(port, "/readyz") == 200 and time.monotonic() - sent_s <= probe_s


def _pause(started: float) -> None:
    if time.monotonic() - started > TIMEOUT_S:
        raise NoRecoveryError(f"expected a recovery within {TIMEOUT_S:.0f} s")
    time.sleep(PAUSE_S)
