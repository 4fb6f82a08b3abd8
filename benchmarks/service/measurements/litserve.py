"""Comparison of the service with LitServe under the same mixed load, in alternating runs."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import Load, closed_loop
from benchmarks.service.load.garbage_collection import short_gc_pauses
from benchmarks.service.load.request import Part, post_form
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import Server, eulerlora_server, server_process
from benchmarks.service.server.process_tree import paused
from eulerlora_client.contract.sampling import Mode

CPU = torch.device("cpu")
MIN_THROUGHPUT_RATIO = 1.3
GRACE_S = 1.0  # LitServe does not stop all processes on SIGTERM
P99_TARGET = Target(bound="at most", value=1.0)
MODES: tuple[Mode, ...] = ("det", "stoch")


@dataclass(frozen=True)
class Batching:
    """Settings of LitServe. timeout_s: maximum wait for a batch. workers: processes."""

    size: int
    timeout_s: float
    workers: int = 1


# Without a timeout LitServe batches waiting requests, as the service does, but it busy-polls.
CANDIDATES = (
    Batching(1, 0.0),
    Batching(1, 0.0, workers=2),
    Batching(4, 0.0),
    Batching(16, 0.0),
    Batching(4, 0.005),
    Batching(8, 0.005),
    Batching(8, 0.02),
    Batching(16, 0.01),
    Batching(16, 0.05),
    Batching(8, 0.005, workers=2),
)


def litserve_comparison(plan: Plan) -> Iterator[Result]:
    """Compares throughput and p99 with LitServe at its best settings."""
    images = synthetic_images(plan.image_count)
    requests, posted = service_requests(images), peer_requests(images)
    rates = {
        batching: _trial(plan, batching, posted) for batching in CANDIDATES[: plan.peer_candidates]
    }
    best = max(rates, key=lambda batching: rates[batching])
    with short_gc_pauses(), eulerlora_server(plan.options) as server, litserve(best) as peer:

        def pair() -> tuple[Load, Load]:
            with paused(peer.pid):
                load = closed_loop(server.port, requests, plan.peer_clients, plan.peer_responses)
            return load, closed_loop(peer.port, posted, plan.peer_clients, plan.peer_responses)

        pair()  # warm-up
        pairs = [pair() for _ in range(plan.peer_runs)]
    trials = [vars(batching) | {"answers_a_s": rate} for batching, rate in rates.items()]
    sizes = _sizes(plan, pairs) | {"litserve": vars(best), "litserve_trials": trials}
    for metric, value in (("throughput", lambda load: load.rate), ("p99", _p99)):
        ours, reference = ([value(load) for load in side] for side in zip(*pairs, strict=True))
        yield _comparison(plan, best, metric).result(ours, reference, CPU, sizes)


def litserve(batching: Batching) -> AbstractContextManager[Server]:
    """Runs LitServe while the block runs."""
    port = free_port()
    arguments = [port, batching.size, batching.timeout_s, batching.workers]
    program = ["-m", "benchmarks.service.references.litserve_server", *map(str, arguments)]
    return server_process(program, "/health", port, GRACE_S)


def free_port() -> int:
    """Returns a port that is free at present."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _trial(plan: Plan, batching: Batching, requests: Sequence[bytes]) -> float:
    with litserve(batching) as peer:
        closed_loop(peer.port, requests, plan.peer_clients, plan.peer_clients)  # warm-up
        return closed_loop(peer.port, requests, plan.peer_clients, plan.peer_trial_responses).rate


def _comparison(plan: Plan, best: Batching, metric: str) -> Comparison:
    rate = metric == "throughput"
    peer = f"LitServe, batches of {best.size}, {1000 * best.timeout_s:g} ms, {best.workers} workers"
    return Comparison(
        name=f"{metric}, mixed det and stoch from {plan.peer_clients} clients / LitServe",
        ours="eulerlora serve",
        reference=peer,
        target=Target(bound="at least", value=MIN_THROUGHPUT_RATIO) if rate else P99_TARGET,
        unit="answers/s" if rate else "seconds",
        libraries=LIBRARIES,
    )


def _sizes(plan: Plan, pairs: Sequence[tuple[Load, Load]]) -> dict[str, object]:
    return {
        "clients": plan.peer_clients,
        "answers_a_run": plan.peer_responses,
        "not_answered": [
            sum(len(load.exchanges) - len(load.successful) for load in side)
            for side in zip(*pairs, strict=True)
        ],
        "clients_share_of_a_core": max(load.client_share for pair in pairs for load in pair),
    }


def _p99(load: Load) -> float:
    return float(np.percentile([exchange.seconds for exchange in load.successful], 99))


def service_requests(images: Sequence[bytes], modes: Sequence[Mode] = MODES) -> list[bytes]:
    """Returns a form for the service for every image and mode."""
    return [
        post_form([Part("file", image, "a.jpg", "image/jpeg")], parameters(mode))
        for image in images
        for mode in modes
    ]


def peer_requests(images: Sequence[bytes], modes: Sequence[Mode] = MODES) -> list[bytes]:
    """Returns the same for servers that take the mode as a field of the form."""
    return [
        post_form([Part("file", image, "a.jpg", "image/jpeg"), Part("mode", mode.encode())])
        for image in images
        for mode in modes
    ]
