"""Load above the capacity: responses, refusals, memory growth and recovery."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import torch

from benchmarks.measurement.reading import Measurement, Reading, Unit
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import Exchange, closed_loop
from benchmarks.service.load.garbage_collection import short_gc_pauses
from benchmarks.service.load.open_loop import poisson_load
from benchmarks.service.load.request import post
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.memory_growth import growth, sampled
from benchmarks.service.server.process import eulerlora_server
from benchmarks.service.server.process_tree import resident
from benchmarks.service.server.recovery import recovery_seconds
from eulerlora_client.contract.sampling import Mode

CPU = torch.device("cpu")
MODES: tuple[Mode, ...] = ("det", "stoch")
CLIENT_MARGIN_S = 5.0  # of a client's timeout over the deadline
SAMPLE_S = 1.0
WARMUP = 0.25  # share of the load's duration, in which queues and buffers fill
MAX_GROWTH = 0.02
OK, UNAVAILABLE = 200, 503


def overload(plan: Plan) -> Iterator[Reading]:
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
            last_sent = Event()
            recovered = executor.submit(_recovery, server.port, images[0], plan, last_sent)
            exchanges = poisson_load(
                server.port,
                requests,
                rate,
                plan.overload_s,
                plan.deadline_s + CLIENT_MARGIN_S,
                last_sent.set,
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
    share = _measurement(
        f"{load}: answered within {plan.deadline_s:g} s or refused within "
        f"{1000 * plan.refusal_s:g} ms",
        "by the client's clock, all requests",
        "share",
        Target(bound="at least", value=1.0),
    )
    yield share.reading(float(np.mean(timely)), timely, CPU, sizes)
    by_status = [float(exchange.status in (OK, UNAVAILABLE)) for exchange in exchanges]
    responded = _measurement(
        f"{load}: answered or refused at all", "by status, 200 or 503", "share"
    )
    yield responded.reading(float(np.mean(by_status)), by_status, CPU, sizes)
    grown = growth(samples, WARMUP * plan.overload_s, "rss")
    memory_row = _measurement(
        f"{load}: memory growth after the first quarter",
        "RSS of the process tree; spread: of its samples, over the first",
        "share",
        Target(bound="at most", value=MAX_GROWTH),
    )
    yield memory_row.reading(grown, [sample.rss / idle.rss - 1 for sample in samples], CPU, sizes)
    recovery = _measurement(
        f"{load}: ready and answering again",
        f"from the last request sent to a /readyz of at most {1000 * plan.refusal_s:g} ms and a "
        "/predict with an answer; spread: both",
        "seconds",
        Target(bound="at most", value=plan.ready_within_s),
    )
    yield recovery.reading(max(ready, predicts), [ready, predicts], CPU, sizes)


def _recovery(port: int, image: bytes, plan: Plan, last_sent: Event) -> tuple[float, float]:
    last_sent.wait()
    return recovery_seconds(port, image, plan.refusal_s)


def in_time(exchange: Exchange, deadline_s: float, refusal_s: float) -> bool:
    """True if a request succeeded within `deadline_s` or was refused within `refusal_s`."""
    if exchange.status == OK:
        return exchange.seconds <= deadline_s
    return exchange.status == UNAVAILABLE and exchange.seconds <= refusal_s


def _measurement(name: str, what: str, unit: Unit, target: Target | None = None) -> Measurement:
    return Measurement(name=name, what=what, unit=unit, target=target, libraries=LIBRARIES)


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
