"""Time of a single request: what the service adds to it, and decoding of a large photograph."""

import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from statistics import median

import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.attacks import PHONE_PHOTOGRAPH
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.connection import Response
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import eulerlora_server, server_process

CPU = torch.device("cpu")
MAX_OVERHEAD_S = 0.002
MAX_PHOTOGRAPH_S = 0.07
WARMUP_REQUESTS = 20
WHAT = "median of: wall time at the client, less decode and model of Server-Timing"


def single_request(plan: Plan) -> Iterator[Reading]:
    """Returns the median over sequential requests on one connection, and that of a bare route."""
    images = synthetic_images(plan.image_count)
    with eulerlora_server(plan.options) as server:
        rows = timings(server.port, images, plan.single_requests)
    yield reading("time added to a lone request, mode det", rows, max_s=MAX_OVERHEAD_S)
    with server_process(["-m", "benchmarks.service.references.bare_route"], "/readyz") as server:
        rows = timings(server.port, images, plan.single_requests)
    yield reading("time that a bare FastAPI route adds to a lone request", rows, max_s=None)


def photograph(plan: Plan) -> Iterator[Reading]:
    """Returns the median time of decoding a photograph of 12 megapixels, one after another."""
    image = synthetic_images(1, size=PHONE_PHOTOGRAPH)[0]
    with eulerlora_server(plan.options) as server:
        seconds = [row["decode"] for row in timings(server.port, [image], plan.photographs)]
    measurement = Measurement(
        name="a photograph of 12 megapixels: decode and resize",
        what="decode of Server-Timing",
        unit="seconds",
        target=Target(bound="at most", value=MAX_PHOTOGRAPH_S),
        libraries=LIBRARIES,
    )
    yield measurement.reading(median(seconds), seconds, CPU, {"bytes": len(image)})


def reading(name: str, rows: Sequence[dict[str, float]], max_s: float | None) -> Reading:
    """Returns the reading of the overhead."""
    added = [row["wall"] - row["decode"] - row["model"] for row in rows]
    target = None if max_s is None else Target(bound="at most", value=max_s)
    measurement = Measurement(
        name=name, what=WHAT, unit="seconds", target=target, libraries=LIBRARIES
    )
    parts = {f"{name}_s": median(row[name] for row in rows) for name in rows[0]}
    return measurement.reading(median(added), added, CPU, parts)


def timings(port: int, images: Sequence[bytes], count: int) -> list[dict[str, float]]:
    """Returns the timings of `count` requests after a warm-up."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        rows = [
            timed(connection, images[index % len(images)])
            for index in range(WARMUP_REQUESTS + count)
        ]
    finally:
        connection.close()
    return rows[WARMUP_REQUESTS:]


def timed(connection: HTTPConnection, image: bytes, target: str = "/predict") -> dict[str, float]:
    """Returns the seconds of a request: `wall`, and the durations of `Server-Timing`."""
    started = time.perf_counter()
    connection.request("POST", target, image, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    content = response.read()
    wall = time.perf_counter() - started
    if response.status != 200:
        raise ValueError(f"expected status 200, got {response.status}: {content!r}")
    headers = {name.lower(): value for name, value in response.getheaders()}
    return {"wall": wall} | Response(response.status, headers, content).server_seconds()
