"""Probes and predictions while connections are open on which half a request came."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.closed_loop import Load, closed_loop
from benchmarks.service.load.request import post
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import eulerlora_server, status

CPU = torch.device("cpu")
HALF_HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-"
PROBE_S = 0.1


def half_open(plan: Plan) -> Iterator[Reading]:
    """The slowest probe, and the share of predictions that are answered as they should be."""
    photographs = made_up_photographs(plan.photographs)
    requests = [post(each) for each in photographs]
    half = {"headers": HALF_HEAD, "body": requests[0][: len(requests[0]) // 2]}
    with eulerlora_server(plan.options) as server:
        before = _one_after_another(server.port, requests, plan.probes)
        for what, sent in half.items():
            with stalled(server.port, sent, plan.half_open):
                probes = [_probe_seconds(server.port) for _ in range(plan.probes)]
                meanwhile = _one_after_another(server.port, requests, plan.probes)
            load = f"{plan.half_open} connections with half the {what}"
            probe = Measurement(
                name=f"{load}: /readyz",
                what="the slowest of probes one after another, each on its own connection",
                unit="seconds",
                target=Target(bound="at most", value=PROBE_S),
                libraries=LIBRARIES,
            )
            yield probe.reading(max(probes), probes, CPU, {"probes": plan.probes})
            answered = [float(each.status == 200) for each in meanwhile.outcomes]
            predict = Measurement(
                name=f"{load}: /predict answered",
                what="requests one after another",
                unit="share",
                target=Target(bound="at least", value=1.0),
                libraries=LIBRARIES,
            )
            sizes = {"median_s": _median_s(meanwhile), "median_without_s": _median_s(before)}
            yield predict.reading(sum(answered) / len(answered), answered, CPU, sizes)


@contextmanager
def stalled(port: int, sent: bytes, count: int) -> Iterator[None]:
    """That many connections on which `sent` was sent and no more."""
    with ExitStack() as connections:
        for _ in range(count):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(sent)
        yield


def _one_after_another(port: int, requests: list[bytes], count: int) -> Load:
    return closed_loop(port, requests, 1, count)


def _median_s(load: Load) -> float:
    return median(each.seconds for each in load.answered)


def _probe_seconds(port: int) -> float:
    started = time.monotonic()
    found = status(port, "/readyz")
    return time.monotonic() - started if found == 200 else float("inf")
