"""Our service and LitServe under the same mixed load, in alternating runs."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.closed_loop import Load, closed_loop
from benchmarks.service.load.garbage_collection import unhindered
from benchmarks.service.load.request import Part, post_form
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import Server, eulerlora_server, server_process
from benchmarks.service.server.process_tree import paused
from eulerlora.settings import Mode

CPU = torch.device("cpu")
LEAST = 1.3
GRACE_S = 1.0  # LitServe leaves processes alive after SIGTERM
NO_WORSE = Target(bound="at most", value=1.0)
MODES: tuple[Mode, ...] = ("det", "stoch")


@dataclass(frozen=True)
class Batching:
    """LitServe's own settings. timeout_s: for which a batch is waited for. workers: processes."""

    size: int
    timeout_s: float
    workers: int = 1


# Batches without a timeout would take what waits, as ours do, but LitServe polls without a pause.
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


def peer_comparison(plan: Plan) -> Iterator[Result]:
    """Throughput and p99 over those of the best of LitServe's settings."""
    photographs = made_up_photographs(plan.photographs)
    ours, theirs = _our_requests(photographs), _peer_requests(photographs)
    rates = {each: _trial(plan, each, theirs) for each in CANDIDATES[: plan.peer_candidates]}
    best = max(rates, key=lambda each: rates[each])
    with unhindered(), eulerlora_server(plan.options) as server, litserve(best) as peer:

        def pair() -> tuple[Load, Load]:
            with paused(peer.pid):
                own = closed_loop(server.port, ours, plan.peer_clients, plan.peer_answers)
            return own, closed_loop(peer.port, theirs, plan.peer_clients, plan.peer_answers)

        pair()  # warm
        pairs = [pair() for _ in range(plan.peer_runs)]
    trials = [vars(each) | {"answers_a_s": rate} for each, rate in rates.items()]
    sizes = _sizes(plan, pairs) | {"litserve": vars(best), "litserve_trials": trials}
    own_rates, peer_rates = [own.rate for own, _ in pairs], [peer.rate for _, peer in pairs]
    yield _comparison(plan, best, "throughput").result(own_rates, peer_rates, CPU, sizes)
    own_p99, peer_p99 = [_p99(own) for own, _ in pairs], [_p99(peer) for _, peer in pairs]
    yield _comparison(plan, best, "p99").result(own_p99, peer_p99, CPU, sizes)


def litserve(batching: Batching) -> AbstractContextManager[Server]:
    """LitServe in processes of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    arguments = [port, batching.size, batching.timeout_s, batching.workers]
    program = ["-m", "benchmarks.service.references.litserve_server", *map(str, arguments)]
    return server_process(program, "/health", port, GRACE_S)


def _trial(plan: Plan, batching: Batching, requests: Sequence[bytes]) -> float:
    with litserve(batching) as peer:
        closed_loop(peer.port, requests, plan.peer_clients, plan.peer_clients)  # warm
        return closed_loop(peer.port, requests, plan.peer_clients, plan.peer_trial_answers).rate


def _comparison(plan: Plan, best: Batching, what: Literal["throughput", "p99"]) -> Comparison:
    rate = what == "throughput"
    peer = f"LitServe, batches of {best.size}, {1000 * best.timeout_s:g} ms, {best.workers} workers"
    return Comparison(
        name=f"{what}, mixed det and stoch from {plan.peer_clients} clients / LitServe",
        ours="eulerlora serve",
        reference=peer,
        target=Target(bound="at least", value=LEAST) if rate else NO_WORSE,
        unit="answers/s" if rate else "seconds",
        libraries=LIBRARIES,
    )


def _sizes(plan: Plan, pairs: Sequence[tuple[Load, Load]]) -> dict[str, object]:
    return {
        "clients": plan.peer_clients,
        "answers_a_run": plan.peer_answers,
        "not_answered": [
            sum(len(load.outcomes) - len(load.answered) for load in side)
            for side in zip(*pairs, strict=True)
        ],
        "clients_share_of_a_core": max(load.client_share for pair in pairs for load in pair),
    }


def _p99(load: Load) -> float:
    return float(np.percentile([each.seconds for each in load.answered], 99))


def _our_requests(photographs: Sequence[bytes]) -> list[bytes]:
    return [
        post_form([Part("file", photograph, "a.jpg", "image/jpeg")], parameters(mode))
        for photograph in photographs
        for mode in MODES
    ]


def _peer_requests(photographs: Sequence[bytes]) -> list[bytes]:
    return [
        post_form([Part("file", photograph, "a.jpg", "image/jpeg"), Part("mode", mode.encode())])
        for photograph in photographs
        for mode in MODES
    ]
