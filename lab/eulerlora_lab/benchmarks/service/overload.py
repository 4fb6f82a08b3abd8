"""Load above the capacity: responses, refusals, memory growth and recovery.

The load is open: requests are sent at scheduled times (Poisson arrivals), independent of earlier
responses.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

from eulerlora_contract.sampling import MODES
from eulerlora_lab.benchmarks.results import Result, at_least, at_most
from eulerlora_lab.benchmarks.service.load import (
    ClientSession,
    Exchange,
    closed_loop,
    parameters,
    percentile,
    post,
    short_gc_pauses,
)
from eulerlora_lab.benchmarks.service.plan import ServicePlan
from eulerlora_lab.benchmarks.service.server import (
    eulerlora_server,
    growth,
    resident,
    sampled,
    status,
)

_CLIENT_MARGIN_S = 5.0  # of a client's timeout over the deadline
_SAMPLE_S = 1.0
_WARMUP = 0.25  # share of the load's duration, in which queues and buffers fill
_MAX_GROWTH = 0.02
OK, _UNAVAILABLE = 200, 503
TIMEOUT_S = 60.0
_PAUSE_S = 0.01


def overload(plan: ServicePlan) -> Iterator[Result]:
    images = plan.images()
    requests = [post(image, parameters=parameters(mode)) for image in images for mode in MODES]
    with eulerlora_server(plan.options) as server:
        capacity = closed_loop(server.port, requests, plan.clients, plan.capacity_responses).rate
        idle = resident(server.pid)
        with (
            short_gc_pauses(),
            sampled(server.pid, _SAMPLE_S) as samples,
            ThreadPoolExecutor() as executor,
        ):
            last_sent = threading.Event()

            def recovery() -> tuple[float, float]:
                last_sent.wait()
                return _recovery_seconds(server.port, images[0], plan.refusal_s)

            recovered = executor.submit(recovery)
            timeout_s = plan.deadline_s + _CLIENT_MARGIN_S
            rate = plan.overload * capacity
            exchanges = asyncio.run(
                poisson_load(server.port, requests, rate, plan.overload_s, timeout_s, last_sent.set)
            )
            ready, predicts = recovered.result()
    load = f"{plan.overload:g} times the capacity for {plan.overload_s:g} s, Poisson arrivals"
    timely = [float(in_time(exchange, plan.deadline_s, plan.refusal_s)) for exchange in exchanges]
    yield Result(
        name=f"{load}: answered within {plan.deadline_s:g} s or refused within "
        f"{1000 * plan.refusal_s:g} ms",
        ours=f"all requests; p99 of the answers {percentile(exchanges, 99):.2f} s",
        value=mean(timely),
        measured=timely,
        unit="share",
        target=at_least(1.0),
    )
    yield Result(
        name=f"{load}: memory growth after the first quarter",
        ours="RSS of the process tree; spread: of its samples, over that before the load",
        value=growth(samples, _WARMUP * plan.overload_s),
        measured=[sample.rss / idle - 1 for sample in samples],
        unit="share",
        target=at_most(_MAX_GROWTH),
    )
    yield Result(
        name=f"{load}: ready and answering again",
        ours=f"from the last request sent to a /readyz of at most {1000 * plan.refusal_s:g} ms and "
        "a /predict with an answer; spread: both",
        value=max(ready, predicts),
        measured=[ready, predicts],
        target=at_most(plan.ready_within_s),
    )


def in_time(exchange: Exchange, deadline_s: float, refusal_s: float) -> bool:
    if exchange.status == OK:
        return exchange.seconds <= deadline_s
    return exchange.status == _UNAVAILABLE and exchange.seconds <= refusal_s


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
    idle: list[ClientSession] = []
    generator = random.Random(1)

    async def send(request: bytes, scheduled_s: float) -> Exchange:
        session = idle.pop() if idle else ClientSession(port)
        response = None
        try:
            response = (await asyncio.wait_for(session.send(request), timeout_s)).response
        except TimeoutError:
            session.close()
        idle.append(session)
        return Exchange(scheduled_s, time.monotonic() - scheduled_s, response)

    sent: list[asyncio.Task[Exchange]] = []
    scheduled_s = time.monotonic()
    end_s = scheduled_s + seconds
    while (scheduled_s := scheduled_s + generator.expovariate(rate)) < end_s:
        await asyncio.sleep(scheduled_s - time.monotonic())
        sent.append(asyncio.create_task(send(generator.choice(requests), scheduled_s)))
    last_sent()
    exchanges = await asyncio.gather(*sent)
    for session in idle:
        session.close()
    return exchanges


def _recovery_seconds(port: int, image: bytes, probe_s: float) -> tuple[float, float]:
    """Seconds to a /readyz with 200 within `probe_s`, and to a /predict with 200."""
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
        raise TimeoutError(f"expected a recovery within {TIMEOUT_S:.0f} s")
    time.sleep(_PAUSE_S)
