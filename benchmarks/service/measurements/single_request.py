"""What the service adds to a lone request, beyond decoding it and running the model."""

import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from statistics import median

import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.connection import Answer
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import eulerlora_server, server_process

CPU = torch.device("cpu")
MOST_S = 0.002
WARM = 20
WHAT = "median of: wall time at the client, less decode and model of Server-Timing"


def lone_request(plan: Plan) -> Iterator[Reading]:
    """The median over requests one after another on one connection, and that of a bare route."""
    photographs = made_up_photographs(plan.photographs)
    with eulerlora_server(plan.options) as server:
        rows = timings(server.port, photographs, plan.lone_requests)
    yield reading("time added to a lone request, mode det", rows, most_s=MOST_S)
    with server_process(["-m", "benchmarks.service.references.bare_route"], "/readyz") as server:
        rows = timings(server.port, photographs, plan.lone_requests)
    yield reading("time that a bare FastAPI route adds to a lone request", rows, most_s=None)


def reading(name: str, rows: Sequence[dict[str, float]], most_s: float | None) -> Reading:
    """What the timings of requests say together."""
    added = [row["wall"] - row["decode"] - row["model"] for row in rows]
    target = None if most_s is None else Target(bound="at most", value=most_s)
    measurement = Measurement(
        name=name, what=WHAT, unit="seconds", target=target, libraries=LIBRARIES
    )
    parts = {f"{name}_s": median(row[name] for row in rows) for name in rows[0]}
    return measurement.reading(median(added), added, CPU, parts)


def timings(port: int, photographs: Sequence[bytes], count: int) -> list[dict[str, float]]:
    """The timings of so many requests, after some that are left out."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        rows = [
            timed(connection, photographs[index % len(photographs)])
            for index in range(WARM + count)
        ]
    finally:
        connection.close()
    return rows[WARM:]


def timed(
    connection: HTTPConnection, photograph: bytes, target: str = "/predict"
) -> dict[str, float]:
    """Seconds of one request: `wall`, and the parts that the server tells of."""
    started = time.perf_counter()
    connection.request("POST", target, photograph, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    content = response.read()
    wall = time.perf_counter() - started
    if response.status != 200:
        raise ValueError(f"wanted an answer, got status {response.status}: {content!r}")
    headers = {name.lower(): value for name, value in response.getheaders()}
    return {"wall": wall} | Answer(response.status, headers, content).server_seconds()
