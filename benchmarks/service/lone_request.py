"""What the service adds to a lone request, beyond decoding it and running the model."""

import time
from collections.abc import Iterator
from http.client import HTTPConnection
from statistics import median

import torch

from benchmarks.reading import Measurement, Reading
from benchmarks.result import Target
from benchmarks.service.connection import Answer
from benchmarks.service.photographs import made_up_photographs
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server import eulerlora_server

CPU = torch.device("cpu")
MOST_S = 0.002
WARM = 20


def lone_request(plan: Plan) -> Iterator[Reading]:
    """The median over requests one after another on one connection."""
    photographs = made_up_photographs(plan.photographs)
    with eulerlora_server(plan.options) as server:
        connection = HTTPConnection("127.0.0.1", server.port)
        for index in range(WARM):
            timed(connection, photographs[index % len(photographs)])
        rows = [
            timed(connection, photographs[index % len(photographs)])
            for index in range(plan.lone_requests)
        ]
        connection.close()
    added = [row["wall"] - row["decode"] - row["model"] for row in rows]
    measurement = Measurement(
        name="time added to a lone request, mode det",
        what="median of: wall time at the client, less decode and model of Server-Timing",
        unit="seconds",
        target=Target(bound="at most", value=MOST_S),
        libraries=LIBRARIES,
    )
    parts = {f"{name}_s": median(row[name] for row in rows) for name in rows[0]}
    yield measurement.reading(median(added), added, CPU, parts)


def timed(connection: HTTPConnection, photograph: bytes) -> dict[str, float]:
    """Seconds of one request: `wall`, and the parts that the server tells of."""
    started = time.perf_counter()
    connection.request("POST", "/predict", photograph, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    content = response.read()
    wall = time.perf_counter() - started
    if response.status != 200:
        raise ValueError(f"wanted an answer, got status {response.status}: {content!r}")
    headers = {name.lower(): value for name, value in response.getheaders()}
    return {"wall": wall} | Answer(response.status, headers, content).server_seconds()
