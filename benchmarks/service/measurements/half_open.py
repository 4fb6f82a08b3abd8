"""Probes and predictions while connections with half a request are open."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import Load, closed_loop
from benchmarks.service.load.request import post
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import eulerlora_server, status

CPU = torch.device("cpu")
HALF_HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-"
MAX_PROBE_S = 0.1


def half_open(plan: Plan) -> Iterator[Reading]:
    """Measures the slowest probe and the share of successful predictions."""
    images = synthetic_images(plan.image_count)
    requests = [post(image) for image in images]
    half = {"headers": HALF_HEAD, "body": requests[0][: len(requests[0]) // 2]}
    with eulerlora_server(plan.options) as server:
        before = _sequential_requests(server.port, requests, plan.probes)
        for part, data in half.items():
            with stalled(server.port, data, plan.half_open):
                probes = [_probe_seconds(server.port) for _ in range(plan.probes)]
                meanwhile = _sequential_requests(server.port, requests, plan.probes)
            load = f"{plan.half_open} connections with half the {part}"
            probe = Measurement(
                name=f"{load}: /readyz",
                what="the slowest of probes one after another, each on its own connection",
                unit="seconds",
                target=Target(bound="at most", value=MAX_PROBE_S),
                libraries=LIBRARIES,
            )
            yield probe.reading(max(probes), probes, CPU, {"probes": plan.probes})
            successful = [float(exchange.status == 200) for exchange in meanwhile.exchanges]
            predict = Measurement(
                name=f"{load}: /predict answered",
                what="requests one after another",
                unit="share",
                target=Target(bound="at least", value=1.0),
                libraries=LIBRARIES,
            )
            sizes = {"median_s": _median_s(meanwhile), "median_without_s": _median_s(before)}
            yield predict.reading(sum(successful) / len(successful), successful, CPU, sizes)


@contextmanager
def stalled(port: int, data: bytes, count: int) -> Iterator[None]:
    """Holds `count` connections open on which only `data` was sent."""
    with ExitStack() as connections:
        for _ in range(count):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(data)
        yield


def _sequential_requests(port: int, requests: list[bytes], count: int) -> Load:
    return closed_loop(port, requests, 1, count)


def _median_s(load: Load) -> float:
    return median(exchange.seconds for exchange in load.successful)


def _probe_seconds(port: int) -> float:
    started = time.monotonic()
    code = status(port, "/readyz")
    return time.monotonic() - started if code == 200 else float("inf")
