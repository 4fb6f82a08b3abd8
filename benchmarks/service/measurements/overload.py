"""Load far above what the service can do: what it answers, what it refuses, and how it recovers."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import torch

from benchmarks.measurement.reading import Measurement, Reading, Unit
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.closed_loop import Outcome, closed_loop
from benchmarks.service.load.garbage_collection import unhindered
from benchmarks.service.load.open_loop import poisson_load
from benchmarks.service.load.request import post
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.memory_growth import growth, sampled
from benchmarks.service.server.process import eulerlora_server
from benchmarks.service.server.process_tree import resident
from benchmarks.service.server.recovery import seconds_until_it_answers
from eulerlora.settings import Mode

CPU = torch.device("cpu")
MODES: tuple[Mode, ...] = ("det", "stoch")
PATIENCE_S = 5.0  # beyond the deadline, for a client to give up
SAMPLE_S = 1.0
SETTLE = 0.25  # of the load's time: queues and buffers fill first
GROWTH = 0.02
ANSWERED, REFUSED = 200, 503


def overload(plan: Plan) -> Iterator[Reading]:
    """The share of requests that were answered or refused in time, growth, and recovery."""
    photographs = made_up_photographs(plan.photographs)
    requests = [post(each, parameters=parameters(mode)) for each in photographs for mode in MODES]
    with eulerlora_server(plan.options) as server:
        capacity = closed_loop(server.port, requests, plan.clients, plan.capacity_answers).rate
        rate = plan.overload * capacity
        idle = resident(server.pid)
        worked = time.process_time()
        with (
            unhindered(),
            sampled(server.pid, SAMPLE_S, resident) as samples,
            ThreadPoolExecutor() as aside,
        ):
            last_sent = Event()
            recovered = aside.submit(_recovery, server.port, photographs[0], plan, last_sent)
            outcomes = poisson_load(
                server.port,
                requests,
                rate,
                plan.overload_s,
                plan.deadline_s + PATIENCE_S,
                last_sent.set,
            )
            ready, answers = recovered.result()
        client_share = (time.process_time() - worked) / (samples[-1].at_s - samples[0].at_s)
    sizes = _sizes(outcomes) | {
        "capacity_answers_a_s": capacity,
        "asked_a_s": rate,
        "seconds": plan.overload_s,
        "deadline_s": plan.deadline_s,
        "refusal_s": plan.refusal_s,
        "clients_share_of_a_core": client_share,
        "rss_before": idle.rss,
        "rss_greatest": max(each.rss for each in samples),
    }
    load = f"{plan.overload:g} times the capacity for {plan.overload_s:g} s, Poisson arrivals"
    good = [float(in_time(each, plan.deadline_s, plan.refusal_s)) for each in outcomes]
    share = _measurement(
        f"{load}: answered within {plan.deadline_s:g} s or refused within "
        f"{1000 * plan.refusal_s:g} ms",
        "by the client's clock, all requests",
        "share",
        Target(bound="at least", value=1.0),
    )
    yield share.reading(float(np.mean(good)), good, CPU, sizes)
    by_status = [float(each.status in (ANSWERED, REFUSED)) for each in outcomes]
    told = _measurement(f"{load}: answered or refused at all", "by status, 200 or 503", "share")
    yield told.reading(float(np.mean(by_status)), by_status, CPU, sizes)
    grown = growth(samples, SETTLE * plan.overload_s, "rss")
    memory_row = _measurement(
        f"{load}: memory growth after the first quarter",
        "RSS of the process tree; spread: of its samples, over the first",
        "share",
        Target(bound="at most", value=GROWTH),
    )
    yield memory_row.reading(grown, [each.rss / idle.rss - 1 for each in samples], CPU, sizes)
    recovery = _measurement(
        f"{load}: ready and answering again",
        f"from the last request sent to a /readyz of at most {1000 * plan.refusal_s:g} ms and a "
        "/predict with an answer; spread: both",
        "seconds",
        Target(bound="at most", value=plan.ready_within_s),
    )
    yield recovery.reading(max(ready, answers), [ready, answers], CPU, sizes)


def _recovery(port: int, photograph: bytes, plan: Plan, last_sent: Event) -> tuple[float, float]:
    last_sent.wait()
    return seconds_until_it_answers(port, photograph, plan.refusal_s)


def in_time(outcome: Outcome, deadline_s: float, refusal_s: float) -> bool:
    """Whether a request was answered within the deadline, or refused at once."""
    if outcome.status == ANSWERED:
        return outcome.seconds <= deadline_s
    return outcome.status == REFUSED and outcome.seconds <= refusal_s


def _measurement(name: str, what: str, unit: Unit, target: Target | None = None) -> Measurement:
    return Measurement(name=name, what=what, unit=unit, target=target, libraries=LIBRARIES)


def _sizes(outcomes: Sequence[Outcome]) -> dict[str, object]:
    refusals = [each.seconds for each in outcomes if each.status == REFUSED]
    answers = [each.seconds for each in outcomes if each.status == ANSWERED]
    return {
        "requests": len(outcomes),
        "statuses": Counter(str(each.status) for each in outcomes),
        "answers_p99_s": float(np.percentile(answers, 99)) if answers else None,
        "refusals_p99_s": float(np.percentile(refusals, 99)) if refusals else None,
        "refusals_slowest_s": max(refusals, default=None),
    }
